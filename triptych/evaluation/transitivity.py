"""Do two modalities meet that never met in training, because each met a third?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from triptych.contracts import MODALITIES, Modality
from triptych.evaluation.retrieval import Retrieval
from triptych.recipe import Recipe

METRIC = "R@10"
TERM = re.compile(r"\w+\((\w+),(\w+)\)")  # how training names what it did with two modalities


@dataclass(frozen=True)
class Transit:
    """One direction that was never trained, beside the two trained ones that lead there over a bridge."""

    query: Modality
    gallery: Modality
    bridge: Modality
    untrained: Retrieval
    there: Retrieval  # query -> bridge
    onward: Retrieval  # bridge -> gallery
    kept: float  # of the weaker leg's recall above chance


def trained_pairs(recipe: Recipe, logged: Iterable[str] = ()) -> set[frozenset[str]]:
    """The pairs of modalities that were trained: those a run has logged terms of, else those its recipe names.

    A recipe may name a pair that no row of the data has; what was logged knows better.
    """
    seen = {frozenset(match.groups()) for name in logged if (match := TERM.match(name))}
    return seen or {frozenset(pair) for use in recipe.objectives for pair in use.pairs}


def transits(directions: Sequence[Retrieval], trained: set[frozenset[str]], metric: str = METRIC) -> list[Transit]:
    """Every direction that was never trained but has a bridge; of several bridges, the one with the better worse leg.

    kept = (R - chance) / (R of the weaker leg - its chance): 1 where nothing is lost on the way, 0 where all is.
    """
    known = {(d.query, d.gallery): d for d in directions if d.mode == "inductive"}
    found = []
    for (query, gallery), direct in known.items():
        if frozenset((query, gallery)) in trained:
            continue
        ways = []
        for bridge in MODALITIES:
            legs = (known.get((query, bridge)), known.get((bridge, gallery)))
            both = {frozenset((query, bridge)), frozenset((bridge, gallery))} <= trained
            if both and legs[0] and legs[1]:
                ways.append((min(above(leg, metric) for leg in legs if leg), bridge, legs[0], legs[1]))
        if ways:
            weaker, bridge, there, onward = max(ways, key=lambda way: way[0])
            kept = above(direct, metric) / weaker if weaker > 0 else 0.0
            ends = cast(Modality, query), cast(Modality, gallery)
            found.append(Transit(*ends, bridge, direct, there, onward, kept))
    return found


def above(direction: Retrieval, metric: str = METRIC) -> float:
    """What a direction reaches beyond guessing."""
    return direction.metrics[metric] - direction.guessed[metric]
