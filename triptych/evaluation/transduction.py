"""Transductive retrieval: all queries of a test set are ranked jointly by a transport plan.

In inductive retrieval, as in a search, each query is ranked by its own scores. In transductive retrieval all queries
share the gallery, so items that many queries prefer are penalised. This raises the metrics, but is a different task:
do not compare inductive with transductive metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from triptych.errors import UsageError
from triptych.evaluation.items import EvalItems
from triptych.evaluation.retrieval import (
    GALLERY_BLOCK,
    QUERY_BLOCK,
    RetrievalResult,
    ScoreFunction,
    compute_retrieval_metrics,
    rank_positives,
)
from triptych.evaluation.significance import NUM_RESAMPLES
from triptych.interfaces import MODALITIES, Modality
from triptych.progress import track_progress
from triptych.space import Space
from triptych.streaming import DEFAULT_BLOCK_SIZE
from triptych.transport.matrix import DenseScores, TiledScores
from triptych.transport.plan import make_problem, solve_dual

EPSILON_FRACTION = 0.03  # default epsilon, as a fraction of the range of the scores
TOLERANCE, MAX_ITERATIONS = 1e-6, 200  # sufficient for exact ranks
MAX_DENSE_SCORES = 20_000_000  # scores in memory, 8 bytes each and a few copies
MAX_STREAMED_SCORES = 1_000_000_000  # scores that are not stored, but recomputed about a hundred times


@dataclass(frozen=True)
class DualPotentials:
    """The dual potentials of the plan, which are added to the scores of queries (row) and items (column)."""

    row: Tensor  # (N,) float64
    column: Tensor  # (M,) float64
    epsilon: float


@torch.no_grad()
def measure_transductive(
    space: Space,
    items: Mapping[Modality, EvalItems],
    epsilon: float | None = None,
    num_resamples: int = NUM_RESAMPLES,
    show_progress: bool = True,
) -> list[RetrievalResult]:
    """Measure every direction, ranked by the entropic transport plan between all queries and all items.

    plan = argmax_P <P, scores> + epsilon · H(P), rows and columns uniform;  log plan_ij = (s_ij + f_i + g_j) / epsilon
    so query i ranks items by s_ij + g_j. In the opposite direction, query j ranks items by s_ij + f_i. The default
    epsilon is 0.03 of the range of the scores.

    Source: Luong et al. 2024, who stop after ten iterations; here the plan is converged.
    Use when: you compare with results that were measured this way.
    Beware: assumes that all queries are known and every item is equally often a positive, as only in test sets.
    """
    ordered_items = sorted(items.values(), key=lambda modality_items: MODALITIES.index(modality_items.modality))
    results: dict[tuple[str, str], RetrievalResult] = {}
    pairs = [(a, b) for a, b in combinations(ordered_items, 2) if torch.isin(a.group_ids, b.group_ids).any()]
    with track_progress("transport plans", len(pairs), show_progress and bool(pairs)) as progress:
        for a, b in pairs:
            scores = _make_score_function(space, a, b)
            potentials = solve_potentials(space, a, b, scores, epsilon)
            for query, gallery, adjusted_scores in (
                (a, b, _add_potential(scores, potentials.column)),
                (b, a, _add_potential(lambda rows, columns, s=scores: s(columns, rows).T, potentials.row)),
            ):
                ranks = rank_positives(adjusted_scores, query.group_ids, gallery.group_ids)
                modalities = query.modality, gallery.modality
                results[modalities] = compute_retrieval_metrics(
                    *modalities, ranks, query.group_ids, len(gallery), num_resamples, "transductive"
                )
            progress.advance(1)
    return [results[a, b] for a in items for b in items if (a, b) in results]


def solve_potentials(
    space: Space, a: EvalItems, b: EvalItems, scores: ScoreFunction, epsilon: float | None = None
) -> DualPotentials:
    """Solve for the potentials of the plan between two modalities, from a dense matrix or, if too large, from tiles."""
    count = len(a) * len(b)
    is_exact = space.similarity.is_exact
    max_scores = MAX_STREAMED_SCORES if is_exact else MAX_DENSE_SCORES
    if count > max_scores:
        raise UsageError(
            f"{a.modality}–{b.modality}: {len(a):,} × {len(b):,} scores are too many for a transport plan; the "
            f"limit is {max_scores:,} with this similarity: choose a smaller split, or leave out --transductive"
        )
    if count <= MAX_DENSE_SCORES:
        table = DenseScores(_compute_all_scores(scores, len(a), len(b)))
    else:
        table = TiledScores(space.similarity.query(a.features), space.similarity.keys(b.features), DEFAULT_BLOCK_SIZE)
    span = table.value_range()
    if span == 0:  # all scores are equal, so every plan is optimal
        return DualPotentials(torch.zeros(len(a)).double(), torch.zeros(len(b)).double(), 0.0)
    scaled_epsilon = EPSILON_FRACTION * span if epsilon is None else epsilon
    problem = make_problem((len(a), len(b)), a.features.embedding.device, scaled_epsilon, None, None, 1.0)
    point, _, _ = solve_dual(table, scaled_epsilon, problem, TOLERANCE, MAX_ITERATIONS)
    return DualPotentials(point.row * scaled_epsilon, point.column * scaled_epsilon, scaled_epsilon)


def _make_score_function(space: Space, a: EvalItems, b: EvalItems) -> ScoreFunction:
    return lambda rows, columns: space.scores(a.take(rows), b.take(columns))


def _add_potential(scores: ScoreFunction, potential: Tensor) -> ScoreFunction:
    return lambda rows, columns: scores(rows, columns).double() + potential[columns]


def _compute_all_scores(scores: ScoreFunction, n: int, m: int) -> Tensor:
    """Return all scores (N, M) in float64, computed block by block."""
    table = torch.empty(n, m, dtype=torch.float64)
    for rows in torch.arange(n).split(QUERY_BLOCK):
        for columns in torch.arange(m).split(GALLERY_BLOCK):
            table[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = scores(rows, columns)
    return table
