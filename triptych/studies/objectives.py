"""All objectives side by side: same encoders, same budget, each tuned by the same small search."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from triptych.recipe import Recipe
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, use
from triptych.studies.plots import bars
from triptych.studies.verdicts import against, mean_and_spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Which objective makes the best space, given the same encoders and the same budget?"
HOW = (
    "Linear heads over frozen encoders, twelve epochs. Each objective gets the same search: three learning rates × two "
    "values of one knob of its own, chosen on the validation rows; then three seeds, measured on the test rows. "
    "Differences are to the one that the validation rows prefer, with intervals over items and seeds. "
    "Distillation is left out: it is an addition that needs a teacher, not a rival."
)
RATES, SEEDS = (3e-4, 1e-3, 3e-3), (0, 1, 2)
RIVALS: dict[str, tuple[str, str, tuple[float, float], dict[str, Any]]] = {  # objective, knob, its values, the rest
    "infonce": ("infonce", "temperature", (0.05, 0.1), {}),
    "sigmoid": ("sigmoid", "temperature", (0.05, 0.1), {}),
    "contrastive, 64 negatives": ("contrastive", "temperature", (0.05, 0.1), {"negatives": 64}),
    "triplet, semi-hard": ("triplet", "margin", (0.1, 0.3), {"negatives": "semi_hard"}),
    "triplet, hardest": ("triplet", "margin", (0.1, 0.3), {"negatives": "hardest"}),
    "triplet, all": ("triplet", "margin", (0.1, 0.3), {"negatives": "all"}),
    "alignment + uniformity": ("align_uniform", "t", (2.0, 4.0), {}),
    "matching (transport)": ("matching", "epsilon", (0.03, 0.06), {}),
}


def cells() -> int:
    """How many cells the study has, at most."""
    return len(RIVALS) * (len(RATES) * 2 + len(SEEDS))


def run(lab: Lab, book: Book) -> Finding:
    """Search on the validation rows, then the best of each with three seeds on the test rows."""
    records: list[Record] = []
    final: dict[str, list[Values]] = {}
    valid: dict[str, float] = {}
    for name, (objective, knob, values, rest) in RIVALS.items():
        tried: dict[tuple[float, float], float] = {}
        for rate, value in product(RATES, values):
            recipe = _recipe(lab, objective, rest | {knob: value}, rate)
            key = {"stage": "search", "objective": name, "rate": rate, knob: value}
            tried[rate, value] = book.cell(partial(_search, lab), recipe, **key)["valid"]
        rate, value = max(tried, key=lambda place: tried[place])
        valid[name] = tried[rate, value]
        recipes = {seed: _recipe(lab, objective, rest | {knob: value}, rate, seed) for seed in SEEDS}
        final[name] = [
            book.cell(partial(_measure, lab), recipe, stage="final", objective=name, seed=seed)
            for seed, recipe in recipes.items()
        ]
        recalls = {key: mean_and_spread([v[key] for v in final[name]]) for key in final[name][0] if key != "hits"}
        records.append({"objective": name, "chosen": f"{knob} {value:g}, rate {rate:g}", **recalls})
    records.sort(key=lambda record: -float(np.mean([v["score"] for v in final[str(record["objective"])]])))
    return Finding(
        {"Recall in %: mean of three seeds (smallest–largest)": records},
        against(
            max(valid, key=lambda name: valid[name]),
            {name: [v["hits"] for v in found] for name, found in final.items()},
            "text → image R@10",
        ),
        partial(_draw, final=final),
    )


def _recipe(lab: Lab, objective: str, settings: dict[str, Any], rate: float, seed: int = 0) -> Recipe:
    return lab.recipe(use(objective, **settings), learning_rate=rate, seed=seed)


def _search(lab: Lab, recipe: Recipe) -> Values:
    return {"valid": lab.measure(lab.fit(recipe), "valid").score()}


def _measure(lab: Lab, recipe: Recipe) -> Values:
    found = lab.measure(lab.fit(recipe))
    return found.values() | {"hits": found.hits("text", "image")}


def _draw(figure: Figure, final: dict[str, list[Values]]) -> None:
    scores = {name: [v["score"] for v in found] for name, found in final.items()}
    bars(figure.subplots(), scores, "mean of R@1, R@5, R@10, both directions (%)")
