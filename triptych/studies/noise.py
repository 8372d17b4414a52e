"""How robust is each objective to wrong pairs?"""

from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from triptych.data.label_noise import choose_swaps, cluster_by_similarity
from triptych.recipe import Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import add_legend, draw_lines
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "How robust is each objective to wrong pairs?"
SETUP = (
    "Linear heads are trained for twelve epochs. A fraction of the training rows gets the captions of another row: "
    "any row (random swaps), or a row with similar captions (similar swaps). There is no model selection; the test "
    "rows keep their captions. One seed."
)
NOISE_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
NOISE_KINDS = ("random", "similar")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "infonce": ("infonce", {"temperature": 0.07}),
    "sigmoid": ("sigmoid", {}),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}),
    "alignment + uniformity": ("align_uniform", {}),
    "matching": ("matching", {"epsilon": 0.1}),
    "matching, partial (mass estimated)": ("matching", {"epsilon": 0.1, "mass": "estimate", "form": "trimmed"}),
}
METRIC = "text → image R@10"
Results = dict[str, dict[str, dict[float, Values]]]  # by kind of noise, method and noise rate


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Train each objective at each rate of both kinds of noise."""
    results: Results = {noise_kind: {} for noise_kind in NOISE_KINDS}
    for name, (objective, settings) in METHODS.items():
        recipe = experiment.make_recipe(configure_objective(objective, **settings))
        clean = cache.load_or_compute(partial(_measure, experiment, None), recipe, objective=name, noise_rate=0.0)
        for noise_kind in NOISE_KINDS:
            results[noise_kind][name] = {0.0: clean}
            for rate in NOISE_RATES[1:]:
                compute = partial(_measure, experiment, (noise_kind, rate))
                key = {"objective": name, "noise_kind": noise_kind, "noise_rate": rate}
                results[noise_kind][name][rate] = cache.load_or_compute(compute, recipe, **key)
    tables: dict[str, list[Record]] = {
        f"{METRIC} in %, {noise_kind} swaps": [
            {"objective": name} | {f"{rate:.0%} wrong": values[METRIC] for rate, values in by_rate.items()}
            for name, by_rate in by_name.items()
        ]
        for noise_kind, by_name in results.items()
    }
    return StudyResult(tables, _make_conclusions(results), partial(_draw_plot, results=results))


def _measure(experiment: Experiment, noise: tuple[str, float] | None, recipe: Recipe) -> Values:
    table = inject_noise(experiment.splits["train"], *noise) if noise else None
    return experiment.evaluate(experiment.fit(recipe, table)).to_dict()


def inject_noise(table: FeatureTable, noise_kind: str, noise_rate: float, seed: int = 0) -> FeatureTable:
    """Return a table in which a fraction of the rows has the captions of another row, random or similar."""
    if noise_kind == "random":
        return table.apply_swaps(choose_swaps(table.ids, [""] * len(table), noise_rate, "random", seed))
    mean_vectors = table.vectors["text"][table.vector_indices["text"], 0]  # (R, C, W)
    mask = (torch.arange(mean_vectors.shape[1]) < table.vector_counts["text"][:, None]).unsqueeze(2)
    row_means = (mean_vectors * mask).sum(dim=1) / mask.sum(dim=1)
    labels = cluster_by_similarity(row_means.numpy(), seed)
    return table.apply_swaps(choose_swaps(table.ids, labels, noise_rate, "category", seed))


def _make_conclusions(results: Results) -> list[str]:
    conclusions = []
    for noise_kind, by_name in results.items():
        retained = {name: by_rate[0.4][METRIC] / by_rate[0.0][METRIC] for name, by_rate in by_name.items()}
        order = sorted(retained, key=lambda name: -retained[name])
        summary = ", ".join(f"{name} {100 * retained[name]:.0f}%" for name in order)
        conclusions.append(f"{METRIC} with 40% {noise_kind} swaps, relative to clean data: {summary}.")
    return conclusions


def _draw_plot(figure: Figure, results: Results) -> None:
    for axes, (noise_kind, by_name) in zip(figure.subplots(1, 2, sharey=True), results.items(), strict=True):
        series = {name: {100 * rate: v[METRIC] for rate, v in by_rate.items()} for name, by_rate in by_name.items()}
        y_label = f"{METRIC} (%)" if noise_kind == NOISE_KINDS[0] else ""
        draw_lines(axes, series, "wrong pairs (%)", y_label, title=f"{noise_kind} swaps")
    add_legend(figure)


STUDY = Study(QUESTION, SETUP, lambda: len(METHODS) * (len(NOISE_KINDS) * (len(NOISE_RATES) - 1) + 1), run)
