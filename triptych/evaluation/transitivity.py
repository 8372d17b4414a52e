"""Measure retrieval between two modalities that were not trained as a pair, but share a third one (the bridge)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from triptych.evaluation.retrieval import RetrievalResult
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import Recipe

METRIC = "R@10"
LOSS_TERM = re.compile(r"\w+\((\w+),(\w+)\)")  # the name of a logged loss term: objective(a,b)


@dataclass(frozen=True)
class TransitiveResult:
    """The result of an untrained retrieval direction and of the two trained directions through the bridge."""

    query: Modality
    gallery: Modality
    bridge: Modality
    direct: RetrievalResult
    to_bridge: RetrievalResult  # query -> bridge
    from_bridge: RetrievalResult  # bridge -> gallery
    retention: float  # recall above chance, divided by the recall above chance of the weaker leg


def find_trained_pairs(recipe: Recipe, logged_terms: Iterable[str] = ()) -> set[frozenset[str]]:
    """Return the trained modality pairs: the pairs of logged loss terms, or of the recipe if there is no log.

    Logged terms are preferred, because a recipe may name a pair that no row of the data has.
    """
    logged_pairs = {frozenset(match.groups()) for name in logged_terms if (match := LOSS_TERM.match(name))}
    return logged_pairs or {frozenset(pair) for objective in recipe.objectives for pair in objective.pairs}


def measure_transitivity(directions: Sequence[RetrievalResult], trained: set[frozenset[str]]) -> list[TransitiveResult]:
    """Measure every untrained direction that has a bridge.

    The legs are the trained directions query → bridge and bridge → gallery. If there are several bridges, the function
    uses the bridge whose weaker leg has the highest recall above chance.
    retention = (R - chance) / (R - chance of the weaker leg)
    The retention is 1 if no recall is lost, and 0 if the recall is at chance.
    """
    by_direction = {(d.query, d.gallery): d for d in directions if d.mode == "inductive"}
    results = []
    for (query, gallery), direct in by_direction.items():
        if frozenset((query, gallery)) in trained:
            continue
        routes = []
        for bridge in MODALITIES:
            legs = (by_direction.get((query, bridge)), by_direction.get((bridge, gallery)))
            is_trained = {frozenset((query, bridge)), frozenset((bridge, gallery))} <= trained
            if is_trained and legs[0] and legs[1]:
                routes.append((min(lift_over_chance(leg) for leg in legs if leg), bridge, legs[0], legs[1]))
        if routes:
            weaker, bridge, to_bridge, from_bridge = max(routes, key=lambda route: route[0])
            retention = lift_over_chance(direct) / weaker if weaker > 0 else 0.0
            modalities = cast(Modality, query), cast(Modality, gallery)
            results.append(TransitiveResult(*modalities, bridge, direct, to_bridge, from_bridge, retention))
    return results


def lift_over_chance(direction: RetrievalResult) -> float:
    """Return METRIC minus its chance level."""
    return direction.metrics[METRIC] - direction.chance_levels[METRIC]
