"""Two-dimensional projections of the space (PCA, t-SNE), and small matrices of matches."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.evaluation.items import EvalItems
from triptych.interfaces import Modality
from triptych.space import Space
from triptych.transport import transport_plan

MAX_GROUPS = 150  # maximum number of groups in a projection
MATRIX_SIZE = 16  # maximum number of items per side of a match matrix


@dataclass(frozen=True)
class Projection:
    """The two-dimensional coordinates of items, with their modality and group."""

    coordinates: NDArray[np.float64]  # (N, 2)
    modality: list[Modality]  # (N,)
    group: NDArray[np.int64]  # (N,)


@dataclass(frozen=True)
class MatchMatrices:
    """The same n items of two modalities, matched by a softmax over each row and by a transport plan."""

    a: Modality
    b: Modality
    temperature: float
    softmax: NDArray[np.float64]  # (n, n), rows sum to 1
    plan: NDArray[np.float64]  # (n, n), rows and columns sum to 1


def select_shared_groups(items: Mapping[Modality, EvalItems], max_groups: int) -> dict[Modality, list[int]]:
    """Select random groups among those with the most modalities; return one item index per group and modality."""
    first_index: dict[Modality, dict[int, int]] = {}
    for modality, modality_items in items.items():
        for index, group in enumerate(modality_items.group_ids.tolist()):
            first_index.setdefault(modality, {}).setdefault(group, index)
    group_counts = Counter(group for index_of_group in first_index.values() for group in index_of_group)
    shared = sorted(group for group, count in group_counts.items() if count == max(group_counts.values()))
    selected = np.random.default_rng(0).permutation(shared)[:max_groups].tolist()
    return {
        m: [index_of_group[group] for group in selected if group in index_of_group]
        for m, index_of_group in first_index.items()
    }


def project_pca(items: Mapping[Modality, EvalItems]) -> Projection:
    """Project the normalised embeddings of all modalities onto their first two principal components."""
    x, modality, group = _stack_unit_vectors(items)
    _, _, axes = np.linalg.svd(x - x.mean(0), full_matrices=False)
    coordinates = (x - x.mean(0)) @ axes[:2].T
    if coordinates.shape[1] < 2:
        coordinates = np.column_stack([coordinates, np.zeros(len(coordinates))])
    return Projection(coordinates, modality, group)


def project_tsne(items: Mapping[Modality, EvalItems]) -> Projection | None:
    """Project the normalised embeddings of all modalities by t-SNE. Return None for fewer than 12 items."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x, modality, group = _stack_unit_vectors(items)
    if len(x) < 12:
        return None
    tsne: Any = TSNE(perplexity=min(20.0, len(x) / 4), init="pca", random_state=0, max_iter=600)
    with threadpool_limits(1):
        return Projection(tsne.fit_transform(x).astype(np.float64), modality, group)


def _stack_unit_vectors(items: Mapping[Modality, EvalItems]) -> tuple[NDArray, list[Modality], NDArray]:
    """Stack the normalised embeddings of the selected items of all modalities."""
    rows, modality, group = [], [], []
    for m, indices in select_shared_groups(items, MAX_GROUPS).items():
        embedding = items[m].features.embedding[indices].double().numpy()
        rows.append(embedding / np.linalg.norm(embedding, axis=1, keepdims=True).clip(1e-12))
        modality += [m] * len(indices)
        group += items[m].group_ids[indices].tolist()
    return np.concatenate(rows), modality, np.array(group)


@torch.no_grad()
def compute_match_matrices(
    space: Space,
    items: Mapping[Modality, EvalItems],
    temperatures: Mapping[frozenset[str], float],
    size: int = MATRIX_SIZE,
) -> list[MatchMatrices]:
    """Compute the match matrices of each modality pair, with the temperature that the pair was trained with.

    softmax_ij = exp(s_ij / T) / sum_k exp(s_ik / T);  plan = entropic transport with cost -s and epsilon = T, times n
    """
    matrices = []
    indices = select_shared_groups(items, size)
    for a, b in combinations(indices, 2):
        groups = set(items[a].group_ids[indices[a]].tolist()) & set(items[b].group_ids[indices[b]].tolist())
        a_indices, b_indices = ([p for p in indices[m] if int(items[m].group_ids[p]) in groups] for m in (a, b))
        if len(groups) < 2:
            continue
        scores = space.scores(items[a].take(torch.tensor(a_indices)), items[b].take(torch.tensor(b_indices))).double()
        t = temperatures.get(frozenset((a, b)), math.nan)
        if not t or not math.isfinite(t):  # without a temperature, a quarter of the standard deviation is typical
            t = max(float(scores.std()) / 4, 1e-6)
        plan = transport_plan(-scores, t, tolerance=1e-6).plan * len(scores)
        matrices.append(MatchMatrices(a, b, t, (scores / t).softmax(dim=1).numpy(), plan.double().numpy()))
    return matrices
