"""What the scores of one space say of pairs it has not seen: how each fits, and how much of it a plan would keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.audit.share import estimate_noise_rate
from triptych.transport import transport_plan

EPSILON = 0.1  # of the plan, in spreads of the scores: sharp, so that a caption nearly as good counts as another
TOLERANCE = 1e-5  # mass in the wrong place: far below what a rank depends on
MAX_MASS, MIN_MASS = 0.98, 0.1  # mass the plan may move: it can always leave a pair or two, and never all
ROW_BLOCK = 2000  # rows that one plan is about
CAPTION_BLOCK = 1000  # the same for plans about single captions, of which there are several a row
NUM_NEIGHBOURS = 30  # things like its own, among which the right one must stand out
MIN_QUERIES = 10  # queries that do not tell how well an item usually fits
MIN_LOG_MASS = -100.0  # log share of mass below which pairs are alike


@dataclass(frozen=True)
class Evidence:
    """For each of E pairs: its score, its p-value, and the log of the share of its mass that the plan keeps on it."""

    score: np.ndarray
    p_value: np.ndarray
    log_retained_mass: np.ndarray
    preferred: np.ndarray  # the b to which most of the mass of its a goes that is not its own; -1 where there is none
    epsilon: float  # of the plan, in scores


def standardise(scores: Tensor) -> Tensor:
    """Scores (U, V) less the mean of their row, over its spread, plus the same by column: no item fits everything."""
    rows = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0).clamp_min(1e-6)
    columns = (scores - scores.mean(0)) / scores.std(0, correction=0).clamp_min(1e-6)
    return rows + columns


def compute_p_values(scores: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Of each pair (a_e, b_e), the share of mismatched cells of scores (U, V) that fit at least as well: (E,).

    A wrong pair is one mismatched cell among many, so its p-value is spread evenly; ties count against the pair.
    """
    fit_score = standardise(scores)
    mismatched = torch.ones_like(scores, dtype=torch.bool)
    mismatched[a, b] = False
    null = fit_score[mismatched].sort().values
    num_below = torch.searchsorted(null, fit_score[a, b].contiguous())  # cells that fit worse
    return (len(null) - num_below + 1) / (len(null) + 1)


def compute_retained_mass(scores: Tensor, a: Tensor, b: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Log of the share of its mass that the partial plan keeps on each pair, (E,), and the log plan (U, V).

    Items weigh as many pairs as they are in. kept_e = log P_ab - log min(weight_a, weight_b): 0 where the lighter of
    the two has nobody else, ever lower the more the plan would rather pair them with others, or with nobody.
    """
    scores = scores.double()
    weight_a = torch.bincount(a, minlength=scores.shape[0]).double() / len(a)
    weight_b = torch.bincount(b, minlength=scores.shape[1]).double() / len(a)
    epsilon = choose_epsilon(scores)
    plan = transport_plan(-scores, epsilon, weight_a, weight_b, mass=mass, tolerance=TOLERANCE)
    # From the potentials: the plan itself cannot hold numbers as small as these.
    log_plan = (plan.row[:, None] + plan.column + plan.offset + scores) / epsilon
    log_capacity = torch.minimum(weight_a[a], weight_b[b]).log()
    return (log_plan[a, b] - log_capacity).clamp(MIN_LOG_MASS, 0), log_plan


def choose_epsilon(scores: Tensor) -> float:
    """The epsilon of a plan over these scores."""
    return EPSILON * float(scores.std().clamp_min(1e-6))


def compute_evidence(scores: Tensor, a: Tensor, b: Tensor) -> Evidence:
    """The evidence on pairs (a_e, b_e) from scores (U, V) of every item against every item they are made of.

    The plan's mass is what is left when the share of wrong pairs, as these p-values tell it, is taken away.
    """
    p_value = compute_p_values(scores, a, b)
    noise_rate = estimate_noise_rate(p_value.numpy()).value
    log_retained_mass, log_plan = compute_retained_mass(scores, a, b, min(MAX_MASS, max(MIN_MASS, 1 - noise_rate)))
    other_mass = log_plan[a]
    other_mass[torch.arange(len(a)), b] = -torch.inf
    top = other_mass.max(dim=1)
    preferred = torch.where(top.values > log_plan[a, b], top.indices, -1)
    return Evidence(
        scores[a, b].numpy(),
        p_value.numpy(),
        log_retained_mass.numpy(),
        preferred.numpy(),
        choose_epsilon(scores.double()),
    )


def split_into_blocks(count: int, block_size: int = ROW_BLOCK) -> list[np.ndarray]:
    """The numbers 0 … count - 1 in as few blocks of at most `size` as can be, about equal."""
    return np.array_split(np.arange(count), max(1, -(-count // block_size)))


@torch.inference_mode()
def compute_margins(
    score_block: Callable[[slice], Tensor],
    similarity_block: Callable[[slice], Tensor],
    own_items: list[int],
    excluded: list[set[int]],
    block_size: int = 256,
) -> np.ndarray:
    """How much better each query's own item fits it than the LIKES items most like that one do, on average: (Q,).

    lead_q = s(q, own) - mean over the nearest j of s(q, j), near by like(own, j); items in `out` of a query, its own
    and others that belong to it, are not among them. A query that was given the item of another of its kind fits it no
    better than it fits others of that kind: its lead is near 0, however high its score.
    """
    margins = []
    for first in range(0, len(own_items), block_size):
        block = slice(first, first + block_size)
        scores, neighbour_similarity = score_block(block), similarity_block(block).clone()  # (size, M)
        for i, indices in enumerate(excluded[block]):
            neighbour_similarity[i, list(indices)] = -torch.inf
        nearest = neighbour_similarity.topk(min(NUM_NEIGHBOURS, neighbour_similarity.shape[1]), dim=1)
        is_valid = nearest.values > -torch.inf
        neighbour_mean = (scores.gather(1, nearest.indices) * is_valid).sum(dim=1) / is_valid.sum(dim=1).clamp_min(1)
        own_score = scores.gather(1, torch.tensor(own_items[block])[:, None])[:, 0]
        margins.append(torch.where(is_valid.any(dim=1), own_score - neighbour_mean, 0).numpy())
    return np.concatenate(margins)


@torch.inference_mode()
def find_best_alternative(
    score_block: Callable[[slice], Tensor], num_queries: int, own_items: list[set[int]], block_size: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """For each query the item that fits best of those that are not its own, and its score: (Q,), (Q,).

    score gives a block of queries against all items; items are compared less their mean over the first queries, so
    that the one caption that fits everything a little is not proposed for everything.
    """
    mean_score = (
        score_block(slice(0, min(num_queries, 2 * block_size))).mean(dim=0)
        if num_queries > MIN_QUERIES
        else torch.zeros(())
    )
    best_items, scores = [], []
    for first in range(0, num_queries, block_size):
        block = score_block(slice(first, first + block_size))  # (size, M)
        centred = block - mean_score
        for i in range(len(block)):
            centred[i, list(own_items[first + i])] = -torch.inf
        best = centred.argmax(dim=1)
        best_items.append(best.numpy())
        scores.append(block.gather(1, best[:, None])[:, 0].numpy())
    return np.concatenate(best_items), np.concatenate(scores)
