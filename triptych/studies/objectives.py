"""Which objective gives the best space with the same encoders, budget and hyperparameter search?"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from triptych.recipe import Recipe
from triptych.studies.conclusions import compare_to_reference, format_mean_and_range
from triptych.studies.experiment import Experiment, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import draw_bars
from triptych.studies.result_cache import ResultCache, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Which objective gives the best space with the same encoders and the same budget?"
SETUP = (
    "Linear heads over frozen encoders are trained for twelve epochs. Each objective gets the same search: three "
    "learning rates × two values of one setting of the objective, selected on the validation rows. The selected "
    "settings are trained with three seeds and evaluated on the test rows. Differences are relative to the objective "
    "with the best validation score, with intervals over items and seeds. Distillation is left out, since it needs a "
    "teacher and complements the other objectives."
)
LEARNING_RATES, SEEDS = (3e-4, 1e-3, 3e-3), (0, 1, 2)
METHODS: dict[
    str, tuple[str, str, tuple[float, float], dict[str, Any]]
] = {  # objective, tuned setting, its values, fixed settings
    "infonce": ("infonce", "temperature", (0.05, 0.1), {}),
    "sigmoid": ("sigmoid", "temperature", (0.05, 0.1), {}),
    "contrastive, 64 negatives": ("contrastive", "temperature", (0.05, 0.1), {"num_negatives": 64}),
    "triplet, semi-hard": ("triplet", "margin", (0.1, 0.3), {"negatives": "semi_hard"}),
    "triplet, hardest": ("triplet", "margin", (0.1, 0.3), {"negatives": "hardest"}),
    "triplet, all": ("triplet", "margin", (0.1, 0.3), {"negatives": "all"}),
    "alignment + uniformity": ("align_uniform", "t", (2.0, 4.0), {}),
    "matching (transport)": ("matching", "epsilon", (0.03, 0.06), {}),
}


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Select settings on the validation rows, then evaluate each objective with three seeds on the test rows."""
    records: list[Record] = []
    final: dict[str, list[Values]] = {}
    valid: dict[str, float] = {}
    for name, (objective, setting, values, fixed_settings) in METHODS.items():
        validation_scores: dict[tuple[float, float], float] = {}
        for learning_rate, value in product(LEARNING_RATES, values):
            recipe = _make_recipe(experiment, objective, fixed_settings | {setting: value}, learning_rate)
            key = {"stage": "search", "objective": name, "learning_rate": learning_rate, setting: value}
            validation_scores[learning_rate, value] = cache.cached_run(partial(_search, experiment), recipe, **key)[
                "valid"
            ]
        learning_rate, value = max(validation_scores, key=lambda choice: validation_scores[choice])
        valid[name] = validation_scores[learning_rate, value]
        recipes = {
            seed: _make_recipe(experiment, objective, fixed_settings | {setting: value}, learning_rate, seed)
            for seed in SEEDS
        }
        final[name] = [
            cache.cached_run(partial(_measure, experiment), recipe, stage="final", objective=name, seed=seed)
            for seed, recipe in recipes.items()
        ]
        recalls = {
            key: format_mean_and_range([v[key] for v in final[name]]) for key in final[name][0] if key != "hit_rates"
        }
        records.append(
            {"objective": name, "settings": f"{setting} {value:g}, learning rate {learning_rate:g}", **recalls}
        )
    records.sort(key=lambda record: -float(np.mean([v["score"] for v in final[str(record["objective"])]])))
    return StudyResult(
        {"Recall in %: mean of three seeds (min–max)": records},
        compare_to_reference(
            max(valid, key=lambda name: valid[name]),
            {name: [v["hit_rates"] for v in runs] for name, runs in final.items()},
            "text → image R@10",
        ),
        partial(_draw, final=final),
    )


def _make_recipe(
    experiment: Experiment, objective: str, settings: dict[str, Any], learning_rate: float, seed: int = 0
) -> Recipe:
    return experiment.make_recipe(configure_objective(objective, **settings), learning_rate=learning_rate, seed=seed)


def _search(experiment: Experiment, recipe: Recipe) -> Values:
    return {"valid": experiment.evaluate(experiment.fit(recipe), "valid").score()}


def _measure(experiment: Experiment, recipe: Recipe) -> Values:
    ranks = experiment.evaluate(experiment.fit(recipe))
    return ranks.to_dict() | {"hit_rates": ranks.hit_rates("text", "image")}


def _draw(figure: Figure, final: dict[str, list[Values]]) -> None:
    scores = {name: [v["score"] for v in runs] for name, runs in final.items()}
    draw_bars(figure.subplots(), scores, "mean of R@1, R@5, R@10, both directions (%)")


STUDY = Study(QUESTION, SETUP, lambda: len(METHODS) * (len(LEARNING_RATES) * 2 + len(SEEDS)), run)
