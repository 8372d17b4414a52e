"""The shape of a space: how close partners lie, how evenly items spread, how far modalities stay apart, hubs."""

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

SAMPLE_SIZE = 4096  # items of a modality that are looked at; uniformity and hubness grow with their square
NUM_NEIGHBOURS = 10


@dataclass(frozen=True)
class ModalityGeometry:
    """How the items of one modality lie."""

    modality: Modality
    num_items: int
    uniformity: float
    effective_rank: float
    embed_dim: int  # what the effective rank could reach
    mean_norm: float  # mean length of the embeddings: 1 on the sphere


@dataclass(frozen=True)
class PairGeometry:
    """How two modalities lie to each other."""

    a: Modality
    b: Modality
    alignment: float | None  # None where no two belong together
    gap: float
    relative_gap: float


@dataclass(frozen=True)
class Hubness:
    """How evenly a gallery's items are found."""

    query: Modality
    gallery: Modality
    k: int
    skewness: float
    top_hub_rate: float  # the share of all queries that have the most frequent item among their k nearest
    never_retrieved_rate: float  # the share of items that are never among the k nearest


@dataclass(frozen=True)
class Geometry:
    """The shape of a space on some items."""

    modalities: list[ModalityGeometry]
    pairs: list[PairGeometry]
    hubness: list[Hubness]


@torch.inference_mode()
def describe_geometry(space: Space, items: Mapping[Modality, EvalItems], sample_size: int = SAMPLE_SIZE) -> Geometry:
    """Everything below, for every modality and every pair; of many items, for the same `sample` of them each time."""
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
    """Mean squared distance of right pairs, on the unit sphere: 0 where partners are the same, 2 where unrelated.

    mean over i, j of one group of |a_i - b_j|² = 2 - 2 · sum_g <A_g, B_g> / sum_g n_g m_g
    with A_g, B_g the sums of the n_g and m_g unit vectors of group g. None where no group has both.

    Source: Wang & Isola 2020 with alpha = 2.
    """
    group_ids, group_index = torch.cat([a_group, b_group]).unique(return_inverse=True)
    a_index, b_index = group_index[: len(a)], group_index[len(a) :]
    empty = a.new_zeros(len(group_ids), a.shape[1])
    sums = empty.index_add(0, a_index, F.normalize(a, dim=1)), empty.index_add(0, b_index, F.normalize(b, dim=1))
    pairs = (a_index.bincount(minlength=len(group_ids)) * b_index.bincount(minlength=len(group_ids))).sum()
    return float(2 - 2 * (sums[0] * sums[1]).sum() / pairs) if pairs else None


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """log mean over i < j of exp(-t |x_i - x_j|²), on the unit sphere: 0 where all is one point, lower is more even.

    On a wide sphere, items spread at random come near -2t.

    Source: Wang & Isola 2020.
    """
    return float(uniform_loss(F.normalize(x, dim=1), t))


def modality_gap(a: Tensor, b: Tensor) -> tuple[float, float]:
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


def hubness(nearest: Tensor, num_items: int) -> tuple[float, float, float]:
    """Of each query's k nearest items (Q, k): skewness of how often items occur, share of the most frequent, of none.

    skewness = mean (n_j - mean n)³ / std³ over items j found n_j times; 0 where all are found alike, above 1 hubs.

    Source: Radovanović et al. 2010.
    """
    if nearest.ndim != 2 or not nearest.numel():
        raise InputError(f"nearest is {tuple(nearest.shape)}; need (Q, k), one query at least")
    count = nearest.flatten().bincount(minlength=num_items).double()
    deviation = count - count.mean()
    spread = deviation.square().mean().sqrt()
    skewness = deviation.pow(3).mean() / spread.pow(3) if spread > 0 else torch.tensor(0.0)
    return float(skewness), float(count.max() / len(nearest)), float((count == 0).double().mean())
