"""Measure the geometry of a space: alignment, uniformity, modality gap, effective rank and hubness."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.errors import InputError
from triptych.evaluation.items import EvalItems
from triptych.interfaces import Features, Modality, iter_blocks
from triptych.objectives.align_uniform import uniform_loss
from triptych.space import Space

SAMPLE_SIZE = 4096  # maximum number of items per modality, because uniformity and hubness have quadratic cost
NUM_NEIGHBOURS = 10  # number of nearest items per query that hubness is computed from


@dataclass(frozen=True)
class ModalityGeometry:
    """The geometry of the embeddings of one modality."""

    modality: Modality
    num_items: int
    uniformity: float
    effective_rank: float
    embed_dim: int  # number of dimensions, the upper bound of the effective rank
    mean_norm: float  # mean length of the embeddings; 1 on the unit sphere


@dataclass(frozen=True)
class PairGeometry:
    """The geometry of the embeddings of two modalities relative to each other."""

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
    top_hub_rate: float  # fraction of the queries whose k nearest items include the most frequent item
    never_retrieved_rate: float  # fraction of the items that are not among the k nearest items of any query


@dataclass(frozen=True)
class Geometry:
    """The geometry of a space, measured on a sample of items."""

    modalities: list[ModalityGeometry]
    pairs: list[PairGeometry]
    hubness: list[Hubness]


@torch.inference_mode()
def describe_geometry(space: Space, items: Mapping[Modality, EvalItems], sample_size: int = SAMPLE_SIZE) -> Geometry:
    """Measure the geometry of every modality, modality pair and retrieval direction on a fixed sample of items."""
    samples: dict[Modality, tuple[Features, Tensor]] = {}
    for modality, entries in items.items():
        rows = torch.randperm(len(entries), generator=torch.Generator().manual_seed(0))[:sample_size].sort().values
        samples[modality] = entries.take(rows), entries.group_ids[rows]
    modalities, pairs, hubness_by_direction = [], [], []
    for modality, (features, _) in samples.items():
        if len(features.embedding) > 1:
            x = features.embedding.double()
            norm = float(x.norm(dim=1).mean())
            modalities.append(ModalityGeometry(modality, len(x), uniformity(x), effective_rank(x), x.shape[1], norm))
    for a, b in combinations(samples, 2):
        (x, x_group), (y, y_group) = (
            (features.embedding.double(), group) for features, group in (samples[a], samples[b])
        )
        pairs.append(PairGeometry(a, b, alignment(x, y, x_group, y_group), *modality_gap(x, y)))
    for a, b in permutations(samples, 2):
        x, y = samples[a][0], samples[b][0]
        k = min(NUM_NEIGHBOURS, len(y.embedding))
        nearest = [space.scores(rows, y).topk(k, dim=1).indices for _, rows in iter_blocks(x, 256)]
        hubness_by_direction.append(Hubness(a, b, k, *hubness(torch.cat(nearest), len(y.embedding))))
    return Geometry(modalities, pairs, hubness_by_direction)


def alignment(a: Tensor, b: Tensor, a_group: Tensor, b_group: Tensor) -> float | None:
    """Return the mean squared distance between the unit vectors of positive pairs, or None without positive pairs.

    mean of |a_i - b_j|² over all pairs i, j of the same group = 2 - 2 · sum_g <A_g, B_g> / sum_g n_g m_g
    A_g and B_g are the sums of the n_g and m_g unit vectors of group g. The result is 0 if the vectors of each pair are
    identical, and 2 if the vectors of each pair are orthogonal.

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
    The relative gap does not depend on the scale of the embeddings. The relative gap is 0 if the centroids are equal,
    and 1 if the distance between the centroids equals the root mean square distance of items from their own centroid.

    Source: Liang et al. 2022 for the gap; the relative gap is Cohen's d for vectors.
    """
    distance = (a.mean(0) - b.mean(0)).norm()
    spread = ((a - a.mean(0)).square().sum(1).mean() + (b - b.mean(0)).square().sum(1).mean()) / 2
    relative = distance / spread.sqrt() if spread > 0 else torch.tensor(0.0 if distance == 0 else float("inf"))
    return float(distance), float(relative)


def effective_rank(x: Tensor) -> float:
    """Return the effective rank exp(-sum_i p_i log p_i), with p_i = s_i / sum s for the singular values s of centred x.

    Source: Roy & Vetterli 2007.
    """
    values = torch.linalg.svdvals(x - x.mean(0))
    total = values.sum()
    if total == 0:
        return 0.0  # all embeddings are equal
    p = values / total
    return float(torch.exp(-torch.xlogy(p, p).sum()))


def hubness(nearest: Tensor, num_items: int) -> tuple[float, float, float]:
    """Compute skewness, top hub rate and never-retrieved rate from the k nearest items (Q, k) of each query.

    skewness = mean (n_j - mean n)³ / std³ over items j that are retrieved n_j times. A skewness above 1 means that
    a few items (hubs) are retrieved very often.

    Source: Radovanović et al. 2010.
    """
    if nearest.ndim != 2 or not nearest.numel():
        raise InputError(f"nearest has shape {tuple(nearest.shape)}; need (Q, k) with at least one query")
    count = nearest.flatten().bincount(minlength=num_items).double()
    deviation = count - count.mean()
    spread = deviation.square().mean().sqrt()
    skewness = deviation.pow(3).mean() / spread.pow(3) if spread > 0 else torch.tensor(0.0)
    return float(skewness), float(count.max() / len(nearest)), float((count == 0).double().mean())
