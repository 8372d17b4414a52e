"""Retrieval with all queries of a test set at once: what a transport plan over them ranks, beside each query alone.

Inductive, a query is ranked by its own scores, as in use. Transductive, it may look at all other queries: they share
the gallery out among themselves, so an item that everybody asks for becomes dear. That helps, and it is another
question; a number of the one kind must never stand where one of the other is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from triptych.contracts import MODALITIES, Modality
from triptych.errors import UsageError
from triptych.evaluation.items import Items
from triptych.evaluation.retrieval import ITEMS, QUERIES, Retrieval, Scores, measure, places
from triptych.evaluation.significance import DRAWS
from triptych.progress import progress
from triptych.space import Space
from triptych.streaming import BLOCK
from triptych.transport.matrix import TiledScores, WholeScores
from triptych.transport.plan import climb, stated

STEEPNESS = 0.03  # epsilon, as a share of the span of the scores, unless it is given
TOLERANCE, ITERATIONS = 1e-6, 200  # ranks ask for no more
WHOLE = 20_000_000  # scores held in memory, 8 bytes each and a few copies
STREAMED = 1_000_000_000  # scores made anew for every product with the plan, about a hundred times


@dataclass(frozen=True)
class Prices:
    """What the plan adds to the scores: with a query's price it reaches its share, with an item's the item does."""

    row: Tensor  # (N,) float64
    column: Tensor  # (M,) float64
    epsilon: float


@torch.no_grad()
def transduce(
    space: Space,
    items: Mapping[Modality, Items],
    epsilon: float | None = None,
    draws: int = DRAWS,
    show: bool = True,
) -> list[Retrieval]:
    """Every direction, ranked by the entropic transport plan between all queries and all items.

    plan = argmax_P <P, scores> + epsilon · H(P), rows and columns uniform;  log plan_ij = (s_ij + f_i + g_j) / epsilon
    so a query i ranks items by s_ij + g_j, and an item j as a query ranks by s_ij + f_i. epsilon is 0.03 of the span
    of the scores unless given.

    Source: Luong et al. 2024 rank so, after ten iterations; here the plan is converged.
    Use when: results that were measured that way are to be compared, for any similarity.
    Beware: it assumes what a test set has and use has not: all queries are known, each item is wanted equally often.
    """
    ordered = sorted(items.values(), key=lambda found: MODALITIES.index(found.modality))
    found: dict[tuple[str, str], Retrieval] = {}
    pairs = [(a, b) for a, b in combinations(ordered, 2) if torch.isin(a.group, b.group).any()]
    with progress("transport plans", len(pairs), show and bool(pairs)) as bar:
        for a, b in pairs:
            scores = _scores(space, a, b)
            cost = prices(space, a, b, scores, epsilon)
            for query, gallery, ranked in (
                (a, b, _priced(scores, cost.column)),
                (b, a, _priced(lambda rows, columns, s=scores: s(columns, rows).T, cost.row)),
            ):
                place = places(ranked, query.group, gallery.group)
                names = query.modality, gallery.modality
                found[names] = measure(*names, place, query.group, len(gallery), draws, "transductive")
            bar.advance(1)
    return [found[a, b] for a in items for b in items if (a, b) in found]


def prices(space: Space, a: Items, b: Items, scores: Scores, epsilon: float | None = None) -> Prices:
    """The potentials of the plan between two modalities, from all scores at once or, if there are too many, tiled."""
    count = len(a) * len(b)
    exact = space.similarity.exact
    most = STREAMED if exact else WHOLE
    if count > most:
        raise UsageError(
            f"{a.modality}–{b.modality}: {len(a):,} × {len(b):,} scores are too many for a plan over a whole test set; "
            f"it takes at most {most:,} with this similarity: choose a smaller split, or measure without --transductive"
        )
    if count <= WHOLE:
        table = WholeScores(_whole(scores, len(a), len(b)))
    else:
        table = TiledScores(space.similarity.query(a.features), space.similarity.keys(b.features), BLOCK)
    span = table.span()
    if span == 0:  # everything is alike: no plan is better than another
        return Prices(torch.zeros(len(a)).double(), torch.zeros(len(b)).double(), 0.0)
    steep = STEEPNESS * span if epsilon is None else epsilon
    problem = stated((len(a), len(b)), a.features.embedding.device, steep, None, None, 1.0)
    point, _, _ = climb(table, steep, problem, TOLERANCE, ITERATIONS)
    return Prices(point.row * steep, point.column * steep, steep)


def _scores(space: Space, a: Items, b: Items) -> Scores:
    return lambda rows, columns: space.scores(a.take(rows), a.modality, b.take(columns), b.modality)


def _priced(scores: Scores, price: Tensor) -> Scores:
    return lambda rows, columns: scores(rows, columns).double() + price[columns]


def _whole(scores: Scores, n: int, m: int) -> Tensor:
    """All scores (N, M) in float64, made block by block."""
    table = torch.empty(n, m, dtype=torch.float64)
    for rows in torch.arange(n).split(QUERIES):
        for columns in torch.arange(m).split(ITEMS):
            table[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = scores(rows, columns)
    return table
