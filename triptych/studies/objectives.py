"""Which objective gives the best space with the same encoders, budget and hyperparameter search?"""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from triptych.recipe import Recipe
from triptych.studies.conclusions import compare_to_reference, format_mean_and_range
from triptych.studies.experiment import Experiment, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import draw_bars
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "Which objective gives the best space with the same encoders and the same budget?"
SETUP = (
    "Linear heads over frozen encoders are trained for twelve epochs. Each objective gets the same search: three "
    "learning rates × two values of one setting of the objective, selected on the validation rows. The selected "
    "settings are trained with three seeds and evaluated on the test rows. Differences are relative to the objective "
    "with the best validation score, with intervals over items and seeds. Distillation is left out, since it needs a "
    "teacher and complements the other objectives."
)
LEARNING_RATES, SEEDS = (3e-4, 1e-3, 3e-3), (0, 1, 2)
# Each method has an objective, a tuned setting, the values of this setting, and fixed settings.
METHODS: dict[str, tuple[str, str, tuple[float, float], dict[str, Any]]] = {
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
    validate, measure = partial(_compute_validation_score, experiment), partial(_measure, experiment)
    for name, (objective, setting, values, fixed) in METHODS.items():
        scores: dict[tuple[float, float], float] = {}
        for rate, value in product(LEARNING_RATES, values):
            recipe = _make_recipe(experiment, objective, fixed | {setting: value}, rate)
            key = {"stage": "search", "objective": name, "learning_rate": rate, setting: value}
            scores[rate, value] = cache.load_or_compute(validate, recipe, **key)["valid"]
        rate, value = max(scores, key=lambda choice: scores[choice])
        valid[name], final[name] = scores[rate, value], []
        for seed in SEEDS:
            recipe = _make_recipe(experiment, objective, fixed | {setting: value}, rate, seed)
            final[name].append(cache.load_or_compute(measure, recipe, stage="final", objective=name, seed=seed))
        keys = [key for key in final[name][0] if key != "hit_rates"]
        recalls = {key: format_mean_and_range([v[key] for v in final[name]]) for key in keys}
        records.append({"objective": name, "settings": f"{setting} {value:g}, learning rate {rate:g}", **recalls})
    records.sort(key=lambda record: -float(np.mean([v["score"] for v in final[str(record["objective"])]])))
    hits = {name: [v["hit_rates"] for v in runs] for name, runs in final.items()}
    conclusions = compare_to_reference(max(valid, key=lambda name: valid[name]), hits, "text → image R@10")
    tables = {"Recall in %: mean of three seeds (min–max)": records}
    return StudyResult(tables, conclusions, partial(_draw_plot, final=final))


def _make_recipe(
    experiment: Experiment, objective: str, settings: dict[str, Any], learning_rate: float, seed: int = 0
) -> Recipe:
    return experiment.make_recipe(configure_objective(objective, **settings), learning_rate=learning_rate, seed=seed)


def _compute_validation_score(experiment: Experiment, recipe: Recipe) -> Values:
    return {"valid": experiment.evaluate(experiment.fit(recipe), "valid").score()}


def _measure(experiment: Experiment, recipe: Recipe) -> Values:
    ranks = experiment.evaluate(experiment.fit(recipe))
    return ranks.to_dict() | {"hit_rates": ranks.hit_rates("text", "image")}


def _draw_plot(figure: Figure, final: dict[str, list[Values]]) -> None:
    scores = {name: [v["score"] for v in runs] for name, runs in final.items()}
    draw_bars(figure.subplots(), scores, "mean of R@1, R@5, R@10, both directions (%)")


STUDY = Study(QUESTION, SETUP, lambda: len(METHODS) * (len(LEARNING_RATES) * 2 + len(SEEDS)), run)
