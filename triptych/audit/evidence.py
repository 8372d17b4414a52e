"""What the scores of one space say of pairs it has not seen: how each fits, and how much of it a plan would keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.audit.share import estimate_share
from triptych.transport import transport_plan

EPSILON = 0.1  # of the plan, in spreads of the scores: sharp, so that a caption nearly as good counts as another
TOLERANCE = 1e-5  # mass in the wrong place: far below what a rank depends on
MOST, LEAST = 0.98, 0.1  # mass the plan may move: it can always leave a pair or two, and never all
BLOCK = 2000  # rows that one plan is about
SINGLES = 1000  # the same for plans about single captions, of which there are several a row
LIKES = 30  # things like its own, among which the right one must stand out
FEW = 10  # queries that do not tell how well an item usually fits
LOWEST = -100.0  # log share of mass below which pairs are alike


@dataclass(frozen=True)
class Evidence:
    """For each of E pairs: its score, its p-value, and the log of the share of its mass that the plan keeps on it."""

    score: np.ndarray
    p: np.ndarray
    kept: np.ndarray
    elsewhere: np.ndarray  # the b to which most of the mass of its a goes that is not its own; -1 where there is none
    epsilon: float  # of the plan, in scores


def standardised(scores: Tensor) -> Tensor:
    """Scores (U, V) less the mean of their row, over its spread, plus the same by column: no item fits everything."""
    rows = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0).clamp_min(1e-6)
    columns = (scores - scores.mean(0)) / scores.std(0, correction=0).clamp_min(1e-6)
    return rows + columns


def p_values(scores: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Of each pair (a_e, b_e), the share of mismatched cells of scores (U, V) that fit at least as well: (E,).

    A wrong pair is one mismatched cell among many, so its p-value is spread evenly; ties count against the pair.
    """
    fit = standardised(scores)
    mismatched = torch.ones_like(scores, dtype=torch.bool)
    mismatched[a, b] = False
    null = fit[mismatched].sort().values
    below = torch.searchsorted(null, fit[a, b].contiguous())  # cells that fit worse
    return (len(null) - below + 1) / (len(null) + 1)


def kept_mass(scores: Tensor, a: Tensor, b: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Log of the share of its mass that the partial plan keeps on each pair, (E,), and the log plan (U, V).

    Items weigh as many pairs as they are in. kept_e = log P_ab - log min(weight_a, weight_b): 0 where the lighter of
    the two has nobody else, ever lower the more the plan would rather pair them with others, or with nobody.
    """
    scores = scores.double()
    weight_a = torch.bincount(a, minlength=scores.shape[0]).double() / len(a)
    weight_b = torch.bincount(b, minlength=scores.shape[1]).double() / len(a)
    epsilon = epsilon_for(scores)
    plan = transport_plan(-scores, epsilon, weight_a, weight_b, mass=mass, tolerance=TOLERANCE)
    # From the potentials: the plan itself cannot hold numbers as small as these.
    log_plan = (plan.row[:, None] + plan.column + plan.offset + scores) / epsilon
    least = torch.minimum(weight_a[a], weight_b[b]).log()
    return (log_plan[a, b] - least).clamp(LOWEST, 0), log_plan


def epsilon_for(scores: Tensor) -> float:
    """The epsilon of a plan over these scores."""
    return EPSILON * float(scores.std().clamp_min(1e-6))


def weigh(scores: Tensor, a: Tensor, b: Tensor) -> Evidence:
    """The evidence on pairs (a_e, b_e) from scores (U, V) of every item against every item they are made of.

    The plan's mass is what is left when the share of wrong pairs, as these p-values tell it, is taken away.
    """
    p = p_values(scores, a, b)
    share = estimate_share(p.numpy()).value
    kept, log_plan = kept_mass(scores, a, b, min(MOST, max(LEAST, 1 - share)))
    rest = log_plan[a]
    rest[torch.arange(len(a)), b] = -torch.inf
    top = rest.max(dim=1)
    elsewhere = torch.where(top.values > log_plan[a, b], top.indices, -1)
    return Evidence(scores[a, b].numpy(), p.numpy(), kept.numpy(), elsewhere.numpy(), epsilon_for(scores.double()))


def blocks(count: int, size: int = BLOCK) -> list[np.ndarray]:
    """The numbers 0 … count - 1 in as few blocks of at most `size` as can be, about equal."""
    return np.array_split(np.arange(count), max(1, -(-count // size)))


@torch.inference_mode()
def leads(
    score: Callable[[slice], Tensor],
    like: Callable[[slice], Tensor],
    own: list[int],
    out: list[set[int]],
    size: int = 256,
) -> np.ndarray:
    """How much better each query's own item fits it than the LIKES items most like that one do, on average: (Q,).

    lead_q = s(q, own) - mean over the nearest j of s(q, j), near by like(own, j); items in `out` of a query, its own
    and others that belong to it, are not among them. A query that was given the item of another of its kind fits it no
    better than it fits others of that kind: its lead is near 0, however high its score.
    """
    found = []
    for first in range(0, len(own), size):
        block = slice(first, first + size)
        scores, near = score(block), like(block).clone()  # (size, M)
        for i, some in enumerate(out[block]):
            near[i, list(some)] = -torch.inf
        best = near.topk(min(LIKES, near.shape[1]), dim=1)
        there = best.values > -torch.inf
        others = (scores.gather(1, best.indices) * there).sum(dim=1) / there.sum(dim=1).clamp_min(1)
        mine = scores.gather(1, torch.tensor(own[block])[:, None])[:, 0]
        found.append(torch.where(there.any(dim=1), mine - others, 0).numpy())
    return np.concatenate(found)


@torch.inference_mode()
def best_other(
    score: Callable[[slice], Tensor], queries: int, own: list[set[int]], size: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """For each query the item that fits best of those that are not its own, and its score: (Q,), (Q,).

    score gives a block of queries against all items; items are compared less their mean over the first queries, so
    that the one caption that fits everything a little is not proposed for everything.
    """
    usual = score(slice(0, min(queries, 2 * size))).mean(dim=0) if queries > FEW else torch.zeros(())
    found, scores = [], []
    for first in range(0, queries, size):
        block = score(slice(first, first + size))  # (size, M)
        fit = block - usual
        for i in range(len(block)):
            fit[i, list(own[first + i])] = -torch.inf
        best = fit.argmax(dim=1)
        found.append(best.numpy())
        scores.append(block.gather(1, best[:, None])[:, 0].numpy())
    return np.concatenate(found), np.concatenate(scores)
