"""Ranks and recalls of one direction: queries of one modality against a gallery of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import torch
from torch import Tensor

from triptych.contracts import Features
from triptych.space import blocks

CUTS = (1, 5, 10)


@dataclass(frozen=True)
class Retrieval:
    """How one direction went. Recall@k is the share of queries with a right answer among the first k."""

    query: str
    gallery: str
    queries: int
    items: int
    recall: dict[int, float]
    chance: dict[int, float]
    median_rank: float


def measure(query: str, gallery: str, ranks: Tensor, right: Tensor, items: int) -> Retrieval:
    """Recalls from ranks (Q,), beside what guessing would give with `right` (Q,) right answers a query."""
    return Retrieval(
        query=query,
        gallery=gallery,
        queries=len(ranks),
        items=items,
        recall={k: (ranks <= k).double().mean().item() for k in CUTS},
        chance={k: float(np.mean([chance(items, int(r), k) for r in right])) for k in CUTS},
        median_rank=float(np.median(ranks.numpy())),
    )


@torch.inference_mode()
def ranks(
    score: Callable[[Features, Features], Tensor],
    query: Features,
    gallery: Features,
    query_group: Tensor,
    gallery_group: Tensor,
    block: int = 256,
) -> tuple[Tensor, Tensor]:
    """Rank (1 = first) of each query's best right answer, and how many right answers it has: (Q,), (Q,).

    rank_i = 1 + #{ wrong j : s_ij >= max over right j of s_ij }
    Ties count against us, so that a space in which everything is alike scores chance or worse, never 100%.
    """
    found, right = [], []
    for first, rows in blocks(query, block):
        scores = score(rows, gallery)  # (block, M)
        match = query_group[first : first + block, None] == gallery_group
        best = scores.masked_fill(~match, -torch.inf).amax(dim=1, keepdim=True)
        found.append(1 + (~match & ~(scores < best)).sum(dim=1))
        right.append(match.sum(dim=1))
    return torch.cat(found), torch.cat(right)


@torch.inference_mode()
def average_precision(
    score: Callable[[Features, Features], Tensor],
    query: Features,
    gallery: Features,
    query_group: Tensor,
    gallery_group: Tensor,
    cut: int = 10,
    block: int = 256,
) -> Tensor:
    """Average precision of each query among its first `cut` answers, (Q,); its mean is mAP@cut.

    AP_i = 1/R_i · sum_k k / rank_ik over the right answers with rank_ik <= cut, best first (k = 1, 2, …); R_i of them
    are in the gallery, so a query with more than `cut` cannot reach 1. Ties count against us; no right answer: 0.
    """
    found = []
    for first, rows in blocks(query, block):
        scores = score(rows, gallery)  # (block, M)
        match = query_group[first : first + block, None] == gallery_group
        right = scores.masked_fill(~match, -torch.inf).sort(dim=1, descending=True).values[:, :cut]
        wrong = scores.masked_fill(match, -torch.inf).sort(dim=1).values
        above = scores.shape[1] - torch.searchsorted(wrong, right.contiguous())  # wrong answers no lower than each
        place = torch.arange(1, right.shape[1] + 1, device=scores.device, dtype=torch.double)
        rank = place + above
        precision = torch.where((rank <= cut) & (right > -torch.inf), place / rank, 0.0)
        found.append(precision.sum(dim=1) / match.sum(dim=1).clamp(min=1))
    return torch.cat(found)


def chance(items: int, right: int, k: int) -> float:
    """Recall@k of a random order: 1 - C(items - right, k) / C(items, k)."""
    if right == 0:
        return 0.0
    if items - right < k:
        return 1.0
    return 1 - float(np.exp(_log_choose(items - right, k) - _log_choose(items, k)))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def groups(names: Sequence[str], known: dict[str, int]) -> Tensor:
    """Group names as numbers, the same number for the same name."""
    return torch.tensor([known.setdefault(name, len(known)) for name in names])
