"""Where items lie on paper: a flat view along the main axes, a map of neighbourhoods, and small squares of matches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.contracts import Modality
from triptych.evaluation.items import Items
from triptych.space import Space
from triptych.transport import transport_plan

SCENES = 150  # groups on a map: more would be a cloud
SQUARE = 16  # items along a side of a square of matches


@dataclass(frozen=True)
class Points:
    """Items on paper; those of one group, in different modalities, are joined by lines."""

    places: NDArray[np.float64]  # (N, 2)
    modality: list[Modality]  # (N,)
    group: NDArray[np.int64]  # (N,)


@dataclass(frozen=True)
class Square:
    """The same few items of two modalities, matched row by row (softmax) and all at once (transport)."""

    a: Modality
    b: Modality
    temperature: float
    softmax: NDArray[np.float64]  # (n, n), rows sum to 1
    plan: NDArray[np.float64]  # (n, n), rows and columns sum to 1


def chosen(items: Mapping[Modality, Items], most: int) -> dict[Modality, list[int]]:
    """One item of each modality for the same few groups, drawn from those that most modalities share."""
    first: dict[Modality, dict[int, int]] = {}
    for modality, own in items.items():
        for place, group in enumerate(own.group.tolist()):
            first.setdefault(modality, {}).setdefault(group, place)
    held: dict[int, int] = {}
    for places in first.values():
        for group in places:
            held[group] = held.get(group, 0) + 1
    shared = sorted(group for group, count in held.items() if count == max(held.values()))
    drawn = np.random.default_rng(0).permutation(shared)[:most].tolist()
    return {m: [places[group] for group in drawn if group in places] for m, places in first.items()}


def along_axes(items: Mapping[Modality, Items], most: int = SCENES) -> Points:
    """The two directions in which all items together vary most (principal components of unit vectors)."""
    x, modality, group = _stacked(items, most)
    _, _, axes = np.linalg.svd(x - x.mean(0), full_matrices=False)
    places = (x - x.mean(0)) @ axes[:2].T
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros(len(places))])
    return Points(places, modality, group)


def neighbourhoods(items: Mapping[Modality, Items], most: int = SCENES) -> Points | None:
    """A map in which near things stay near (t-SNE); None where there are too few items for one."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x, modality, group = _stacked(items, most)
    if len(x) < 12:
        return None
    machine: Any = TSNE(perplexity=min(20.0, len(x) / 4), init="pca", random_state=0, max_iter=600)
    with threadpool_limits(1):
        return Points(machine.fit_transform(x).astype(np.float64), modality, group)


def _stacked(items: Mapping[Modality, Items], most: int) -> tuple[NDArray, list[Modality], NDArray]:
    """Unit vectors of the chosen items of all modalities, one below the other."""
    rows, modality, group = [], [], []
    for m, places in chosen(items, most).items():
        embedding = items[m].features.embedding[places].double().numpy()
        rows.append(embedding / np.linalg.norm(embedding, axis=1, keepdims=True).clip(1e-12))
        modality += [m] * len(places)
        group += items[m].group[places].tolist()
    return np.concatenate(rows), modality, np.array(group)


@torch.no_grad()
def squares(
    space: Space, items: Mapping[Modality, Items], temperature: Mapping[frozenset[str], float], side: int = SQUARE
) -> list[Square]:
    """A square for each pair of modalities; scores are sharpened by the temperature the pair was trained with.

    softmax_ij = exp(s_ij / T) / sum_k exp(s_ik / T);  plan = entropic transport with cost -s and epsilon = T, times n
    """
    found = []
    places = chosen(items, side)
    for a, b in combinations(places, 2):
        groups = set(items[a].group[places[a]].tolist()) & set(items[b].group[places[b]].tolist())
        ours, theirs = ([p for p in places[m] if int(items[m].group[p]) in groups] for m in (a, b))
        if len(groups) < 2:
            continue
        scores = space.scores(items[a].take(torch.tensor(ours)), a, items[b].take(torch.tensor(theirs)), b).double()
        known = temperature.get(frozenset((a, b)))
        # Without one, the scores' own spread makes both squares about as sharp as a trained one.
        t = known if known and math.isfinite(known) else max(float(scores.std()) / 4, 1e-6)
        plan = transport_plan(-scores, t, tolerance=1e-6).plan * len(scores)
        found.append(Square(a, b, t, (scores / t).softmax(dim=1).numpy(), plan.double().numpy()))
    return found
