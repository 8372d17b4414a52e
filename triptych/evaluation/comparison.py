"""Two spaces on the same queries: differences with intervals, queries that flipped, and where the difference lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from triptych.contracts import Modality, Source
from triptych.data.cache import Cache
from triptych.data.manifest import Row
from triptych.errors import MediaError, UsageError
from triptych.evaluation.evaluate import Evaluation, evaluate
from triptych.evaluation.items import Item, Items
from triptych.evaluation.retrieval import MEAN, Retrieval, limits
from triptych.evaluation.significance import DRAWS, Difference, differences_over_runs, intervals
from triptych.media import audio
from triptych.space import Space

CUT = 10  # a query flips where one finds a right answer among the first ten and the other does not
PARTS = 3  # slices of a length


@dataclass(frozen=True)
class Flip:
    """A query that one of the two answers and the other does not."""

    item: Item
    a: float  # rank of the best right answer; over several runs, the median
    b: float


@dataclass(frozen=True)
class Slice:
    """The difference in R@10 among some of the queries."""

    by: str  # words, seconds or label
    of: str
    queries: int
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """One direction, A beside B."""

    query: str
    gallery: str
    queries: int
    differences: dict[str, Difference]  # by metric
    lost: list[Flip]  # only A finds it, the furthest fall first
    won: list[Flip]  # only B finds it
    slices: list[Slice]


def compare(
    a: Space,
    b: Space,
    rows: Sequence[Row],
    show: bool = True,
    cache: Cache | str = "",
    draws: int = DRAWS,
) -> list[Comparison]:
    """Two spaces on the same rows, in every direction both know; for `cache` see `evaluate`."""
    first, second = (evaluate(space, rows, show, cache, draws=0) for space in (a, b))
    return compare_evaluations([first], [second], draws)


def compare_evaluations(a: Sequence[Evaluation], b: Sequence[Evaluation], draws: int = DRAWS) -> list[Comparison]:
    """Evaluations of A and of B on the same rows: one each, or several seeds each.

    One each, intervals say how the difference moves with other items; several, with other seeds, too.
    """
    if not a or not b or (len(a) > 1) != (len(b) > 1):
        raise UsageError(f"{len(a)} and {len(b)} runs; compare one with one, or several seeds with several")
    sides = [[{(d.query, d.gallery): d for d in found.directions} for found in side] for side in (a, b)]
    both = [way for way in sides[0][0] if all(way in found for side in sides for found in side)]
    if not both:
        raise UsageError("nothing to compare: no direction was measured in all of these runs")
    found = []
    for way in both:
        for modality in way:
            _check_same([run.items[cast(Modality, modality)] for side in (a, b) for run in side])
        found.append(_compare(a[0].items, *([run[way] for run in side] for side in sides), draws=draws))
    return found


def _check_same(sets: Sequence[Items]) -> None:
    """Ranks in other galleries, or of other queries, are not comparable."""
    first = [(item.source, item.group) for item in sets[0].each]
    for other in sets[1:]:
        found = [(item.source, item.group) for item in other.each]
        if found != first:
            apart = set(first) ^ set(found)
            name = f"; only one has {min(str(source) for source, _ in apart)}" if apart else ""
            raise UsageError(
                f"the runs were measured on other items: {len(first)} and {len(found)} of {sets[0].modality}{name}. "
                "Measure both on the same rows, and without files that only one can read"
            )


def _compare(items: dict[Modality, Items], a: Sequence[Retrieval], b: Sequence[Retrieval], draws: int) -> Comparison:
    one = a[0]
    names = list(one.each.values)
    tables = [[np.column_stack([run.each.values[name] for name in names]) for run in side] for side in (a, b)]
    differ = partial(_differ, names, *tables, one, draws)
    rank_a, rank_b = (np.median([run.each.rank for run in side], axis=0) for side in (a, b))
    query, gallery = (items[cast(Modality, name)] for name in (one.query, one.gallery))
    asked = [query.each[i] for i in one.each.item]

    def flips(found: NDArray, missed: NDArray) -> list[Flip]:
        which = np.flatnonzero((found <= CUT) & (missed > CUT))
        far = which[np.argsort(-(missed - found)[which], kind="stable")]
        return [Flip(asked[i], float(rank_a[i]), float(rank_b[i])) for i in far]

    slices = []
    for by, of, chosen in _slices(asked, gallery):
        if len(np.unique(one.each.group[chosen])) > 1:
            slices.append(Slice(by, of, int(chosen.sum()), differ(chosen)[f"R@{CUT}"]))
    every = differ(np.ones(len(asked), bool))
    return Comparison(one.query, one.gallery, one.queries, every, flips(rank_a, rank_b), flips(rank_b, rank_a), slices)


def _differ(
    names: Sequence[str],
    a: Sequence[NDArray],
    b: Sequence[NDArray],
    one: Retrieval,
    draws: int,
    chosen: NDArray,
) -> dict[str, Difference]:
    """The difference in every metric, over the chosen queries."""
    first, second = ([table[chosen] for table in side] for side in (a, b))
    cluster = one.each.group[chosen]
    if len(first) > 1:
        found = differences_over_runs(first, second, cluster)
    else:
        spans = [most - least for least, most in (limits(name, one.items) for name in names)]
        found = intervals(second[0] - first[0], cluster, [(-span, span) for span in spans], draws=draws)
    mean_a, mean_b = (np.mean([table.mean(axis=0) for table in side], axis=0).tolist() for side in (first, second))
    return {name: Difference(x, y, interval) for name, x, y, interval in zip(names, mean_a, mean_b, found, strict=True)}


def _slices(asked: Sequence[Item], gallery: Items) -> list[tuple[str, str, NDArray]]:
    """Queries by the words of their captions, by the seconds of their sounds, and by label."""
    found = []
    for by, modality, length in (("words", "text", _words), ("seconds", "audio", _seconds)):
        lengths = _lengths(asked, gallery, modality, length)
        known = np.isfinite(lengths)
        edges = np.unique(np.quantile(lengths[known], np.arange(1, PARTS) / PARTS)) if known.any() else np.empty(0)
        part = np.where(known, np.searchsorted(edges, lengths), -1)
        chosen = [part == i for i in range(len(edges) + 1)]
        chosen = [some for some in chosen if some.any()]
        if len(chosen) > 1:
            found += [(by, f"{lengths[some].min():.3g}–{lengths[some].max():.3g}", some) for some in chosen]
    labels = np.array([item.label or "" for item in asked])
    if len(set(labels)) > 1:
        found += [("label", str(label), labels == label) for label in np.unique(labels) if label]
    return found


def _lengths(asked: Sequence[Item], gallery: Items, modality: str, length: Any) -> NDArray:
    """A length for each query: its own, or the mean over its right answers; NaN where neither has one."""
    if asked[0].source.modality == modality:
        return np.array([length(item.source) for item in asked])
    known: dict[str, list[float]] = defaultdict(list)
    if gallery.modality == modality:
        for item in gallery.each:
            known[item.group].append(length(item.source))
    return np.array([np.mean(known[item.group]) if item.group in known else np.nan for item in asked])


def _words(source: Source) -> float:
    return float(len(str(source.content).split()))


@lru_cache(maxsize=1 << 16)  # every direction asks for the same files
def _seconds(source: Source) -> float:
    try:
        end = audio.duration(Path(source.content)) if source.end is None else source.end
    except MediaError:
        return np.nan
    return end - (source.start or 0.0)


def plain(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON can hold it; shares from 0 to 1, differences as B less A."""
    return {
        "query": comparison.query,
        "gallery": comparison.gallery,
        "queries": comparison.queries,
        "differences": {name: _plain(found, name) for name, found in comparison.differences.items()},
        **{
            name: [{"item": str(flip.item.source), "row": flip.item.row, "a": flip.a, "b": flip.b} for flip in flips]
            for name, flips in (("lost", comparison.lost), ("won", comparison.won))
        },
        "slices": [
            {"by": s.by, "of": s.of, "queries": s.queries, f"R@{CUT}": _plain(s.difference, f"R@{CUT}")}
            for s in comparison.slices
        ],
    }


def _plain(found: Difference, name: str) -> dict[str, Any]:
    return {
        "a": found.a,
        "b": found.b,
        "difference": found.value,
        "interval": [found.interval.low, found.interval.high],
        "verdict": verdict(name, found),
    }


def verdict(name: str, found: Difference) -> str:
    """Which is better by a metric; of ranks, lower is."""
    return found.verdict(higher_is_better=name != MEAN)
