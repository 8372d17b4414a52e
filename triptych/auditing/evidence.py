"""Evidence on pairs from out-of-fold scores: p-values, retained transport mass, margins, and the noise rate."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import binomtest
from torch import Tensor

from triptych.transport import transport_plan

EPSILON = 0.1  # regularisation of the transport plan, in standard deviations of the scores
TOLERANCE = 1e-5  # maximum misplaced mass of the transport plan; too small to change a rank
MAX_MASS, MIN_MASS = 0.98, 0.1  # bounds of the mass that the plan transports
ROW_BLOCK = 2000  # maximum number of rows per plan
CAPTION_BLOCK = 1000  # maximum number of rows per plan if every caption is a separate item
NUM_NEIGHBOURS = 30  # number of nearest items with which the margin compares the own item
MIN_QUERIES = 10  # with at most this many queries, the mean score of each item is not subtracted
MIN_LOG_MASS = -100.0  # lower log masses are clamped to this value
CUTOFFS = np.arange(0.5, 0.951, 0.05)  # candidate cut-offs of p-values, above which nearly all pairs are wrong
LOW_PERCENTILE = 10  # percentile of the noise rates of all cut-offs, used as the reference with the least bias


@dataclass(frozen=True)
class Evidence:
    """Score, p-value and log retained mass of each of E pairs, (E,)."""

    score: np.ndarray
    p_value: np.ndarray
    log_retained_mass: np.ndarray
    preferred: np.ndarray  # item `b` with the most mass from the pair's item `a`; -1 if this is the pair's own item `b`
    epsilon: float  # regularisation of the transport plan, in units of the scores


@dataclass(frozen=True)
class NoiseRateEstimate:
    """The estimated fraction of wrong pairs with its 95% interval."""

    value: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f}% (95% interval {100 * self.low:.1f}–{100 * self.high:.1f})"


def standardise(scores: Tensor) -> Tensor:
    """Return, for each score in (U, V), the z-score within its row plus the z-score within its column."""
    rows = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0).clamp_min(1e-6)
    columns = (scores - scores.mean(0)) / scores.std(0, correction=0).clamp_min(1e-6)
    return rows + columns


def compute_p_values(scores: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return p-values (E,): the fraction of mismatched cells of scores (U, V) that fit as well as pair (a_e, b_e).

    Under the null hypothesis a wrong pair is one mismatched cell among many, so its p-value is uniform. Ties count
    against the pair.
    """
    fit_score = standardise(scores)
    mismatched = torch.ones_like(scores, dtype=torch.bool)
    mismatched[a, b] = False
    null = fit_score[mismatched].sort().values
    num_below = torch.searchsorted(null, fit_score[a, b].contiguous())
    return (len(null) - num_below + 1) / (len(null) + 1)


def compute_retained_mass(scores: Tensor, a: Tensor, b: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Return the log fraction of each pair's mass that a partial plan keeps on the pair, (E,), and the log plan (U, V).

    log_retained_e = log P_ab - log min(weight_a, weight_b), where the weight of an item is proportional to its number
    of pairs. The value is 0 if the plan moves all mass of the lighter item along the pair, and lower if the plan moves
    that mass to other items or does not transport it.
    """
    scores = scores.double()
    weight_a = torch.bincount(a, minlength=scores.shape[0]).double() / len(a)
    weight_b = torch.bincount(b, minlength=scores.shape[1]).double() / len(a)
    epsilon = choose_epsilon(scores)
    plan = transport_plan(-scores, epsilon, weight_a, weight_b, mass=mass, tolerance=TOLERANCE)
    # Compute the log plan from the potentials, because entries of the plan underflow.
    log_plan = (plan.row[:, None] + plan.column + plan.offset + scores) / epsilon
    log_capacity = torch.minimum(weight_a[a], weight_b[b]).log()
    return (log_plan[a, b] - log_capacity).clamp(MIN_LOG_MASS, 0), log_plan


def choose_epsilon(scores: Tensor) -> float:
    """Return the epsilon of the transport plan: EPSILON times the standard deviation of the scores."""
    return EPSILON * float(scores.std().clamp_min(1e-6))


def compute_evidence(scores: Tensor, a: Tensor, b: Tensor) -> Evidence:
    """Compute the evidence on the pairs (a_e, b_e), given the scores (U, V) of all items `a` against all items `b`.

    The plan transports the fraction 1 - noise rate of the mass. The noise rate is estimated from the p-values.
    """
    p_value = compute_p_values(scores, a, b)
    noise_rate = estimate_noise_rate_from_p_values(p_value.numpy()).value
    log_retained_mass, log_plan = compute_retained_mass(scores, a, b, min(MAX_MASS, max(MIN_MASS, 1 - noise_rate)))
    other_mass = log_plan[a]
    other_mass[torch.arange(len(a)), b] = -torch.inf
    top = other_mass.max(dim=1)
    preferred = torch.where(top.values > log_plan[a, b], top.indices, -1)
    score, epsilon = scores[a, b].numpy(), choose_epsilon(scores.double())
    return Evidence(score, p_value.numpy(), log_retained_mass.numpy(), preferred.numpy(), epsilon)


def split_into_blocks(count: int, block_size: int = ROW_BLOCK) -> list[np.ndarray]:
    """Split the indices 0 … count - 1 into the fewest blocks of at most block_size, of about equal size."""
    return np.array_split(np.arange(count), max(1, -(-count // block_size)))


@torch.inference_mode()
def compute_margins(
    score_block: Callable[[slice], Tensor],
    similarity_block: Callable[[slice], Tensor],
    own_items: list[int],
    excluded: list[set[int]],
    block_size: int = 256,
) -> np.ndarray:
    """Return the score of each query's own item minus the mean score of the items nearest to that item: (Q,).

    margin_q = s(q, own) - mean of s(q, j) over the NUM_NEIGHBOURS items j with the highest similarity(own, j). The
    excluded items of q (its positives) are not among them. If a query was given a wrong item of the same kind as the
    correct item, similar items score as high as the given item: the margin is near 0 although the score is high.
    """
    margins = []
    for first in range(0, len(own_items), block_size):
        block = slice(first, first + block_size)
        scores, neighbour_similarity = score_block(block), similarity_block(block).clone()  # (block, M)
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
    """Return the index and the score of the best item of each query that is not the query's own: (Q,), (Q,).

    score_block returns the scores of a block of queries against all items. Before items are compared, the mean score of
    each item over the first queries is subtracted, so that a hub is not proposed for every query.
    """
    mean_score, best_items, scores = torch.zeros(()), [], []
    if num_queries > MIN_QUERIES:
        mean_score = score_block(slice(0, min(num_queries, 2 * block_size))).mean(dim=0)
    for first in range(0, num_queries, block_size):
        block = score_block(slice(first, first + block_size))  # (block, M)
        centred = block - mean_score
        for i in range(len(block)):
            centred[i, list(own_items[first + i])] = -torch.inf
        best = centred.argmax(dim=1)
        best_items.append(best.numpy())
        scores.append(block.gather(1, best[:, None])[:, 0].numpy())
    return np.concatenate(best_items), np.concatenate(scores)


def estimate_noise_rate_from_p_values(p_values: np.ndarray) -> NoiseRateEstimate:
    """Estimate the fraction of wrong pairs, with a 95% Wilson interval, from p-values (N,).

    The p-values of wrong pairs are uniform on [0, 1]; the p-values of correct pairs are near 0. Above a cut-off c
    nearly all pairs are wrong, so rate = #(p > c) / (N · (1 - c)). A low c also counts correct pairs that fit badly; a
    high c leaves few pairs to count. The chosen c minimises the expected squared error of the rate:
    variance + (rate - 10th percentile of the rates of all cut-offs)².

    Source: Storey 2002; the choice of c: Storey, Taylor & Siegmund 2004, in the closed form of Robinson.
    Beware: assumes that wrong pairs fit no better than chance. After swaps within a class, the rate is too low.
    """
    num_pairs = len(p_values)
    if not num_pairs:
        return NoiseRateEstimate(0.0, 0.0, 0.0, 0)
    counts = np.array([(p_values > cutoff).sum() for cutoff in CUTOFFS])
    rates = counts / (num_pairs * (1 - CUTOFFS))
    # counts + 1: a count of 0 does not make the variance 0.
    variance = (counts + 1) / (num_pairs * (1 - CUTOFFS)) ** 2 * (1 - counts / num_pairs)
    best = int(np.argmin(variance + (rates - np.percentile(rates, LOW_PERCENTILE)) ** 2))
    interval = binomtest(int(counts[best]), num_pairs).proportion_ci(0.95, "wilson")
    value, low, high = (min(1.0, float(r)) for r in (rates[best], *np.array(interval) / (1 - CUTOFFS[best])))
    return NoiseRateEstimate(value, low, high, num_pairs)


def estimate_p_wrong(p_values: np.ndarray, fit_scores: np.ndarray, noise_rate: float) -> np.ndarray:
    """Return the probability that each pair is wrong (N,), non-increasing in its fit score.

    P(wrong | p) = noise rate / density(p), where density(p) is Grenander's estimate of the decreasing density of all
    p-values. Isotonic regression then makes the probabilities monotone in the fit score, which discriminates better
    than p alone.

    Source: Efron 2008 (local false discovery rate); Strimmer 2008 (with Grenander's density).
    """
    if not len(p_values):
        return np.zeros(0)
    p_wrong = np.minimum(1.0, noise_rate / np.maximum(grenander_density(p_values), 1e-12))
    _, level, counts = np.unique(fit_scores, return_inverse=True, return_counts=True)
    return isotonic_regression(np.bincount(level, p_wrong) / counts, weights=counts, increasing=False).x[level]


def grenander_density(p_values: np.ndarray) -> np.ndarray:
    """Return the density at each p-value: the slope of the least concave majorant of the empirical distribution.

    Source: Grenander 1956.
    """
    values, counts = np.unique(np.concatenate([p_values, [0.0, 1.0]]), return_counts=True)
    counts[[0, -1]] -= 1  # do not count the added 0 and 1
    counts[1] += counts[0]
    widths = np.diff(values).clip(1e-12)  # p-values from n cells differ by at least 1 / (n + 1)
    slopes = isotonic_regression(counts[1:] / len(p_values) / widths, weights=widths, increasing=False).x
    return slopes[np.maximum(np.searchsorted(values, p_values) - 1, 0)]
