"""Transductive retrieval: all queries of a test set are ranked jointly by a transport plan.

In inductive retrieval, such as search, each query ranks the items by its own scores. In transductive retrieval, all
queries share the gallery, and items that many queries prefer are penalised. Joint ranking raises the metrics, but is a
different task. Do not compare inductive with transductive metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from triptych.errors import UsageError
from triptych.evaluation import retrieval
from triptych.evaluation.items import EvalItems
from triptych.evaluation.significance import NUM_RESAMPLES
from triptych.interfaces import MODALITIES, Modality
from triptych.progress import track_progress
from triptych.space import Space
from triptych.streaming import DEFAULT_BLOCK_SIZE
from triptych.transport.matrix import DenseScores, TiledScores
from triptych.transport.plan import make_problem, solve_dual

EPSILON_FRACTION = 0.03  # default epsilon, as a fraction of the range of the scores
TOLERANCE, MAX_ITERATIONS = 1e-6, 200  # of the solver of the transport plan; small enough for exact ranks
MAX_DENSE_SCORES = 20_000_000  # maximum number of scores in memory; a few copies with 8 bytes per score
MAX_STREAMED_SCORES = 1_000_000_000  # maximum number of scores that are recomputed about a hundred times, not stored


@dataclass(frozen=True)
class DualPotentials:
    """The dual potentials of a transport plan, which are added to the scores: one per query (row) and item (column)."""

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
) -> list[retrieval.RetrievalResult]:
    """Measure every retrieval direction, with items ranked by the entropic transport plan of all queries and items.

    plan = argmax_P <P, scores> + epsilon · H(P), rows and columns uniform;  log plan_ij = (s_ij + f_i + g_j) / epsilon
    Query i therefore ranks items by s_ij + g_j. In the opposite direction, query j ranks items by s_ij + f_i. The
    default epsilon is 0.03 times the range (maximum - minimum) of the scores.

    Source: Luong et al. 2024. The authors stop after ten iterations; triptych iterates until the plan converges.
    Use when: you compare with published results of transductive retrieval.
    Beware: the plan assumes that all queries are known, and that every item is equally often a positive. Only test sets
      meet these assumptions.
    """
    ordered = [items[m] for m in MODALITIES if m in items]
    results: dict[tuple[str, str], retrieval.RetrievalResult] = {}
    pairs = [(a, b) for a, b in combinations(ordered, 2) if torch.isin(a.group_ids, b.group_ids).any()]
    with track_progress("transport plans", len(pairs), show_progress and bool(pairs)) as progress:
        for a, b in pairs:
            scores = a.make_score_function(space, b)
            potentials = solve_potentials(space, a, b, scores, epsilon)
            for query, gallery, adjusted_scores in (
                (a, b, _add_potential(scores, potentials.column)),
                (b, a, _add_potential(lambda rows, columns, s=scores: s(columns, rows).T, potentials.row)),
            ):
                ranks = retrieval.rank_positives(adjusted_scores, query.group_ids, gallery.group_ids)
                direction = query.modality, gallery.modality
                results[direction] = retrieval.compute_retrieval_metrics(
                    *direction, ranks, query.group_ids, len(gallery), num_resamples, "transductive"
                )
            progress.advance(1)
    return [results[a, b] for a in items for b in items if (a, b) in results]


def solve_potentials(
    space: Space, a: EvalItems, b: EvalItems, scores: retrieval.ScoreFunction, epsilon: float | None = None
) -> DualPotentials:
    """Compute the dual potentials of the transport plan between two modalities, from a dense matrix or from tiles."""
    count = len(a) * len(b)
    max_scores = MAX_STREAMED_SCORES if space.similarity.is_exact else MAX_DENSE_SCORES
    if count > max_scores:
        raise UsageError(
            f"{a.modality}–{b.modality}: {len(a):,} × {len(b):,} scores are too many for a transport plan; the "
            f"limit is {max_scores:,} with this similarity. Choose a smaller split, or omit --transductive"
        )
    if count <= MAX_DENSE_SCORES:
        table = DenseScores(_compute_all_scores(scores, len(a), len(b)))
    else:
        table = TiledScores(space.similarity.query(a.features), space.similarity.keys(b.features), DEFAULT_BLOCK_SIZE)
    span = table.value_range()
    if span == 0:  # all scores are equal, so every plan is optimal
        return DualPotentials(torch.zeros(len(a)).double(), torch.zeros(len(b)).double(), 0.0)
    epsilon = EPSILON_FRACTION * span if epsilon is None else epsilon
    problem = make_problem((len(a), len(b)), a.features.embedding.device, epsilon, None, None, 1.0)
    point, _, _ = solve_dual(table, epsilon, problem, TOLERANCE, MAX_ITERATIONS)
    return DualPotentials(point.row * epsilon, point.column * epsilon, epsilon)


def _add_potential(scores: retrieval.ScoreFunction, potential: Tensor) -> retrieval.ScoreFunction:
    return lambda rows, columns: scores(rows, columns).double() + potential[columns]


def _compute_all_scores(scores: retrieval.ScoreFunction, n: int, m: int) -> Tensor:
    """Return all scores (N, M) in float64, computed block by block."""
    table = torch.empty(n, m, dtype=torch.float64)
    for rows in torch.arange(n).split(retrieval.QUERY_BLOCK):
        for columns in torch.arange(m).split(retrieval.GALLERY_BLOCK):
            table[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = scores(rows, columns)
    return table
