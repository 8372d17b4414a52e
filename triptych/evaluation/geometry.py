"""The shape of a space: how close partners lie, how evenly items spread, how far modalities stay apart, hubs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.contracts import Features, Modality
from triptych.errors import InputError
from triptych.evaluation.items import Items
from triptych.objectives.align_uniform import uniform
from triptych.space import Space, blocks

SAMPLE = 4096  # items of a modality that are looked at; uniformity and hubness grow with their square
NEAREST = 10


@dataclass(frozen=True)
class Shape:
    """How the items of one modality lie."""

    modality: Modality
    items: int
    uniformity: float
    effective_rank: float
    width: int  # what the effective rank could reach
    length: float  # mean length of the embeddings: 1 on the sphere


@dataclass(frozen=True)
class Distance:
    """How two modalities lie to each other."""

    a: Modality
    b: Modality
    alignment: float | None  # None where no two belong together
    gap: float
    relative_gap: float


@dataclass(frozen=True)
class Hubs:
    """How evenly a gallery's items are found."""

    query: Modality
    gallery: Modality
    k: int
    skewness: float
    most: float  # the share of all queries that have the most frequent item among their k nearest
    never: float  # the share of items that are never among the k nearest


@dataclass(frozen=True)
class Geometry:
    """The shape of a space on some items."""

    shapes: list[Shape]
    distances: list[Distance]
    hubs: list[Hubs]


@torch.inference_mode()
def describe(space: Space, items: Mapping[Modality, Items], sample: int = SAMPLE) -> Geometry:
    """Everything below, for every modality and every pair; of many items, for the same `sample` of them each time."""
    some: dict[Modality, tuple[Features, Tensor]] = {}
    for modality, own in items.items():
        rows = torch.randperm(len(own), generator=torch.Generator().manual_seed(0))[:sample].sort().values
        some[modality] = own.take(rows), own.group[rows]
    shapes, distances, hubs = [], [], []
    for modality, (features, _) in some.items():
        if len(features.embedding) > 1:
            x = features.embedding.double()
            length = float(x.norm(dim=1).mean())
            shapes.append(Shape(modality, len(x), uniformity(x), effective_rank(x), x.shape[1], length))
    for a, b in combinations(some, 2):
        (x, x_group), (y, y_group) = some[a], some[b]
        ours, theirs = x.embedding.double(), y.embedding.double()
        distances.append(Distance(a, b, alignment(ours, theirs, x_group, y_group), *gap(ours, theirs)))
    for a, b in permutations(some, 2):
        x, y = some[a][0], some[b][0]
        k = min(NEAREST, len(y.embedding))
        nearest = [space.scores(rows, a, y, b).topk(k, dim=1).indices for _, rows in blocks(x, 256)]
        hubs.append(Hubs(a, b, k, *hubness(torch.cat(nearest), len(y.embedding))))
    return Geometry(shapes, distances, hubs)


def alignment(a: Tensor, b: Tensor, a_group: Tensor, b_group: Tensor) -> float | None:
    """Mean squared distance of right pairs, on the unit sphere: 0 where partners are the same, 2 where unrelated.

    mean over i, j of one group of |a_i - b_j|² = 2 - 2 · sum_g <A_g, B_g> / sum_g n_g m_g
    with A_g, B_g the sums of the n_g and m_g unit vectors of group g. None where no group has both.

    Source: Wang & Isola 2020 with alpha = 2.
    """
    names, member = torch.cat([a_group, b_group]).unique(return_inverse=True)
    ours, theirs = member[: len(a)], member[len(a) :]
    empty = a.new_zeros(len(names), a.shape[1])
    sums = empty.index_add(0, ours, F.normalize(a, dim=1)), empty.index_add(0, theirs, F.normalize(b, dim=1))
    pairs = (ours.bincount(minlength=len(names)) * theirs.bincount(minlength=len(names))).sum()
    return float(2 - 2 * (sums[0] * sums[1]).sum() / pairs) if pairs else None


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """log mean over i < j of exp(-t |x_i - x_j|²), on the unit sphere: 0 where all is one point, lower is more even.

    On a wide sphere, items spread at random come near -2t.

    Source: Wang & Isola 2020.
    """
    return float(uniform(F.normalize(x, dim=1), t))


def gap(a: Tensor, b: Tensor) -> tuple[float, float]:
    """How far the middles of two modalities lie apart: as it is, and in units of how far items lie from their middle.

    gap = |mean a - mean b|;  relative = gap / sqrt((mean |a_i - mean a|² + mean |b_j - mean b|²) / 2)
    The first depends on the scale of the space, the second does not: 0 is one middle for both; at 1 the middles are as
    far apart as items are from their own.

    Source: Liang et al. 2022, the gap; the relative one is Cohen's d for vectors.
    """
    distance = (a.mean(0) - b.mean(0)).norm()
    spread = ((a - a.mean(0)).square().sum(1).mean() + (b - b.mean(0)).square().sum(1).mean()) / 2
    relative = distance / spread.sqrt() if spread > 0 else torch.tensor(0.0 if distance == 0 else float("inf"))
    return float(distance), float(relative)


def effective_rank(x: Tensor) -> float:
    """How many directions the items really use: exp(-sum_i p_i log p_i), p_i = s_i / sum s, singular values centred.

    Source: Roy & Vetterli 2007.
    """
    values = torch.linalg.svdvals(x - x.mean(0))
    total = values.sum()
    if total == 0:
        return 0.0  # one point has no direction
    p = values / total
    return float(torch.exp(-torch.xlogy(p, p).sum()))


def hubness(nearest: Tensor, items: int) -> tuple[float, float, float]:
    """Of each query's k nearest items (Q, k): skewness of how often items occur, share of the most frequent, of none.

    skewness = mean (n_j - mean n)³ / std³ over items j found n_j times; 0 where all are found alike, above 1 hubs.

    Source: Radovanović et al. 2010.
    """
    if nearest.ndim != 2 or not nearest.numel():
        raise InputError(f"nearest is {tuple(nearest.shape)}; need (Q, k), one query at least")
    count = nearest.flatten().bincount(minlength=items).double()
    away = count - count.mean()
    spread = away.square().mean().sqrt()
    skewness = away.pow(3).mean() / spread.pow(3) if spread > 0 else torch.tensor(0.0)
    return float(skewness), float(count.max() / len(nearest)), float((count == 0).double().mean())
