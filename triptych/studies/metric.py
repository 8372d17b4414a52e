"""Does a learned metric help matching by transport, and does it close the modality gap?"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from triptych.data.label_noise import choose_swaps
from triptych.evaluation.geometry import modality_gap
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.studies.conclusions import compare_to_reference, format_mean_and_range
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import draw_bars, draw_lines
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "Does a learned metric help matching by transport, and does it close the modality gap?"
SETUP = (
    "Linear heads are trained for twelve epochs with matching by entropic transport. The first table compares "
    "metrics at epsilon 0.05 with three seeds; differences to the identity have intervals over items and seeds. The "
    "second table varies epsilon with cosine similarity. The third table compares forms of partial transport with 0% "
    "and 40% of the training pairs swapped at random; the transported mass is given, estimated, or 1 (balanced)."
)
EMBED_DIM, SEEDS = 256, (0, 1, 2)
METRICS: dict[str, Component] = {
    "cosine": Component("cosine"),
    "identity (Euclidean)": Component("mahalanobis", {"embed_dim": EMBED_DIM, "metric": "identity"}),
    "diagonal": Component("mahalanobis", {"embed_dim": EMBED_DIM, "metric": "diagonal"}),
    **{
        f"low rank {r}": Component("mahalanobis", {"embed_dim": EMBED_DIM, "metric": "low_rank", "rank": r})
        for r in (8, 32, 128)
    },
    "full": Component("mahalanobis", {"embed_dim": EMBED_DIM, "metric": "full"}),
}
REFERENCE = "identity (Euclidean)"  # the same similarity without trained parameters
EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_RATES = (0.0, 0.4)
RECALL_KEYS = ("text → image R@1", "text → image R@10", "image → text R@1", "image → text R@10")


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Compare metrics, then values of epsilon, then forms of partial transport."""
    compute = partial(_measure, experiment)
    results: dict[str, list[Values]] = {name: [] for name in METRICS}
    for (name, similarity), seed in product(METRICS.items(), SEEDS):
        recipe = _make_recipe(experiment, similarity, seed=seed)
        results[name].append(cache.load_or_compute(compute, recipe, sweep="metric", metric=name, seed=seed))
    metrics: list[Record] = [
        {"metric": name, **{key: format_mean_and_range([v[key] for v in runs]) for key in RECALL_KEYS}}
        | {key: sum(v[key] for v in runs) / len(runs) for key in ("modality gap", "modality gap, scale-free")}
        for name, runs in results.items()
    ]
    by_epsilon: dict[float, Values] = {}
    for epsilon in EPSILONS:
        recipe = _make_recipe(experiment, Component("cosine"), epsilon=epsilon)
        by_epsilon[epsilon] = cache.load_or_compute(compute, recipe, sweep="epsilon", epsilon=epsilon)
    epsilons: list[Record] = [{"epsilon": e} | {key: v[key] for key in RECALL_KEYS} for e, v in by_epsilon.items()]
    tables = {
        "Metric (recall in %, mean of three seeds, min–max)": metrics,
        "Epsilon (cosine, one seed)": epsilons,
        "Partial transport with wrong pairs (text → image R@10, one seed)": [
            _compare_partial_transport(experiment, cache, noise_rate) for noise_rate in NOISE_RATES
        ],
    }
    hits = {name: [v["hit_rates"] for v in runs] for name, runs in results.items()}
    conclusions = compare_to_reference(REFERENCE, hits, "text → image R@10")
    return StudyResult(tables, conclusions, partial(_draw_plot, results=results, by_epsilon=by_epsilon))


def _make_recipe(
    experiment: Experiment, similarity: Component, epsilon: float = 0.05, seed: int = 0, **settings: Any
) -> Recipe:
    space = {"similarity": similarity, "embed_dim": EMBED_DIM}
    objective = configure_objective("matching", epsilon=epsilon, **settings)
    return experiment.make_recipe(objective, space=space, metric_lr_scale=0.1, seed=seed)


def _measure(experiment: Experiment, recipe: Recipe, table: FeatureTable | None = None) -> Values:
    space = experiment.fit(recipe, table)
    ranks = experiment.evaluate(space)
    a, b = (experiment.embed_split(space, "test", m)[0].embedding for m in ("image", "text"))
    gap, relative_gap = modality_gap(a, b)
    gaps = {"modality gap": gap, "modality gap, scale-free": relative_gap}
    return ranks.to_dict() | gaps | {"hit_rates": ranks.hit_rates("text", "image")}


def _compare_partial_transport(experiment: Experiment, cache: ResultCache, noise_rate: float) -> Record:
    """Return one row of the table: each way to set the transported mass, at one noise rate."""
    variants: Mapping[str, dict[str, Any]] = {
        "balanced": {},
        "trimmed, given": {"mass": 1 - noise_rate or 1.0, "form": "trimmed"},
        "trimmed, estimated": {"mass": "estimate", "form": "trimmed"},
        "target, given": {"mass": 1 - noise_rate or 1.0, "form": "target"},
        "kl_unnormalised, given": {"mass": 1 - noise_rate or 1.0, "form": "kl_unnormalised"},
    }
    table = experiment.splits["train"]
    if noise_rate:
        table = table.apply_swaps(choose_swaps(table.ids, [""] * len(table), noise_rate, "random", seed=0))
    compute = partial(_measure, experiment, table=table)
    record: Record = {"wrong pairs": f"{noise_rate:.0%}"}
    for variant, settings in variants.items():
        recipe = _make_recipe(experiment, Component("cosine"), **settings)
        values = cache.load_or_compute(compute, recipe, sweep="partial", variant=variant, noise_rate=noise_rate)
        record[variant] = values["text → image R@10"]
    return record


def _draw_plot(figure: Figure, results: Mapping[str, list[Values]], by_epsilon: Mapping[float, Values]) -> None:
    left, right = figure.subplots(1, 2)
    label = "mean of R@1, R@5, R@10, both directions (%)"
    draw_bars(left, {name: [v["score"] for v in runs] for name, runs in results.items()}, label)
    curve = {"cosine": {epsilon: values["score"] for epsilon, values in by_epsilon.items()}}
    draw_lines(right, curve, "epsilon (cosine, one seed)", label, log_x=True)


STUDY = Study(QUESTION, SETUP, lambda: len(METRICS) * len(SEEDS) + len(EPSILONS) + len(NOISE_RATES) * 5, run)
