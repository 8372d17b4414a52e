"""The geometry of a space: alignment, uniformity, modality gap, effective rank and hubness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.errors import InputError
from triptych.evaluation.items import EvalItems
from triptych.interfaces import Features, Modality
from triptych.objectives.align_uniform import uniform_loss
from triptych.space import Space, iter_blocks

SAMPLE_SIZE = 4096  # maximum number of items per modality; uniformity and hubness have quadratic cost
NUM_NEIGHBOURS = 10  # for hubness


@dataclass(frozen=True)
class ModalityGeometry:
    """The geometry of the items of one modality."""

    modality: Modality
    num_items: int
    uniformity: float
    effective_rank: float
    embed_dim: int  # the upper bound of the effective rank
    mean_norm: float  # 1 on the unit sphere


@dataclass(frozen=True)
class PairGeometry:
    """The geometry of two modalities relative to each other."""

    a: Modality
    b: Modality
    alignment: float | None  # None if there is no positive pair
    gap: float
    relative_gap: float


@dataclass(frozen=True)
class Hubness:
    """Statistics of how often each gallery item is retrieved."""

    query: Modality
    gallery: Modality
    k: int
    skewness: float
    top_hub_rate: float  # fraction of the queries that have the most frequent item among their k nearest
    never_retrieved_rate: float  # fraction of the items that are never among the k nearest


@dataclass(frozen=True)
class Geometry:
    """The geometry of a space, measured on some items."""

    modalities: list[ModalityGeometry]
    pairs: list[PairGeometry]
    hubness: list[Hubness]


@torch.inference_mode()
def describe_geometry(space: Space, items: Mapping[Modality, EvalItems], sample_size: int = SAMPLE_SIZE) -> Geometry:
    """Measure the geometry of every modality, pair and direction, on a fixed random sample of the items."""
    samples: dict[Modality, tuple[Features, Tensor]] = {}
    for modality, modality_items in items.items():
        rows = (
            torch.randperm(len(modality_items), generator=torch.Generator().manual_seed(0))[:sample_size].sort().values
        )
        samples[modality] = modality_items.take(rows), modality_items.group_ids[rows]
    modalities, pairs, hubness_by_direction = [], [], []
    for modality, (features, _) in samples.items():
        if len(features.embedding) > 1:
            x = features.embedding.double()
            mean_norm = float(x.norm(dim=1).mean())
            modalities.append(
                ModalityGeometry(modality, len(x), uniformity(x), effective_rank(x), x.shape[1], mean_norm)
            )
    for a, b in combinations(samples, 2):
        (x, x_group), (y, y_group) = samples[a], samples[b]
        a_embedding, b_embedding = x.embedding.double(), y.embedding.double()
        pairs.append(
            PairGeometry(
                a, b, alignment(a_embedding, b_embedding, x_group, y_group), *modality_gap(a_embedding, b_embedding)
            )
        )
    for a, b in permutations(samples, 2):
        x, y = samples[a][0], samples[b][0]
        k = min(NUM_NEIGHBOURS, len(y.embedding))
        nearest = [space.scores(rows, y).topk(k, dim=1).indices for _, rows in iter_blocks(x, 256)]
        hubness_by_direction.append(Hubness(a, b, k, *hubness(torch.cat(nearest), len(y.embedding))))
    return Geometry(modalities, pairs, hubness_by_direction)


def alignment(a: Tensor, b: Tensor, a_group: Tensor, b_group: Tensor) -> float | None:
    """Return the mean squared distance of positive pairs on the unit sphere: 0 if identical, 2 if unrelated.

    mean over i, j of one group of |a_i - b_j|² = 2 - 2 · sum_g <A_g, B_g> / sum_g n_g m_g
    with A_g, B_g the sums of the n_g and m_g unit vectors of group g. The result is None if there is no positive pair.

    Source: Wang & Isola 2020 with alpha = 2.
    """
    group_ids, group_index = torch.cat([a_group, b_group]).unique(return_inverse=True)
    a_index, b_index = group_index[: len(a)], group_index[len(a) :]
    empty = a.new_zeros(len(group_ids), a.shape[1])
    sums = empty.index_add(0, a_index, F.normalize(a, dim=1)), empty.index_add(0, b_index, F.normalize(b, dim=1))
    pairs = (a_index.bincount(minlength=len(group_ids)) * b_index.bincount(minlength=len(group_ids))).sum()
    return float(2 - 2 * (sums[0] * sums[1]).sum() / pairs) if pairs else None


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """Return the uniformity of unit vectors: log mean over i < j of exp(-t |x_i - x_j|²).

    The value is 0 if all points are equal, and about -2t for random points on a sphere of high dimension.

    Source: Wang & Isola 2020.
    """
    return float(uniform_loss(F.normalize(x, dim=1), t))


def modality_gap(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the distance between the centroids of two modalities, absolute and relative to the spread of the items.

    gap = |mean a - mean b|;  relative = gap / sqrt((mean |a_i - mean a|² + mean |b_j - mean b|²) / 2)
    The relative gap does not depend on the scale of the space: 0 for equal centroids, 1 if the distance of the
    centroids equals the root mean square distance of items from their own centroid.

    Source: Liang et al. 2022 for the gap; the relative gap is Cohen's d for vectors.
    """
    distance = (a.mean(0) - b.mean(0)).norm()
    spread = ((a - a.mean(0)).square().sum(1).mean() + (b - b.mean(0)).square().sum(1).mean()) / 2
    relative = distance / spread.sqrt() if spread > 0 else torch.tensor(0.0 if distance == 0 else float("inf"))
    return float(distance), float(relative)


def effective_rank(x: Tensor) -> float:
    """Return exp(-sum_i p_i log p_i), with p_i = s_i / sum s and s the singular values of the centred x.

    Source: Roy & Vetterli 2007.
    """
    values = torch.linalg.svdvals(x - x.mean(0))
    total = values.sum()
    if total == 0:
        return 0.0  # all items are one point
    p = values / total
    return float(torch.exp(-torch.xlogy(p, p).sum()))


def hubness(nearest: Tensor, num_items: int) -> tuple[float, float, float]:
    """Return skewness, top hub rate and never retrieved rate from the k nearest items of each query (Q, k).

    skewness = mean (n_j - mean n)³ / std³ over items j that are retrieved n_j times. A skewness above 1 means hubs.

    Source: Radovanović et al. 2010.
    """
    if nearest.ndim != 2 or not nearest.numel():
        raise InputError(f"nearest is {tuple(nearest.shape)}; need (Q, k) with at least one query")
    count = nearest.flatten().bincount(minlength=num_items).double()
    deviation = count - count.mean()
    spread = deviation.square().mean().sqrt()
    skewness = deviation.pow(3).mean() / spread.pow(3) if spread > 0 else torch.tensor(0.0)
    return float(skewness), float(count.max() / len(nearest)), float((count == 0).double().mean())
