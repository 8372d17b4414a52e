"""Sphere, ball or unconstrained space: how do norms, loss and recall change?"""

from functools import partial

from matplotlib.figure import Figure

from triptych.evaluation.geometry import effective_rank
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.studies.experiment import Experiment, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import draw_lines, set_log_y
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "Sphere, ball or unconstrained space: how do norms, loss and recall change?"
SETUP = (
    "Two-layer heads are trained with the contrastive loss with 64 negatives for forty epochs without weight decay, "
    "so that only the geometry limits the norms. The second table varies the temperature on the sphere. The third "
    "table compares alignment + uniformity with alignment + mean distance between items. One seed."
)
GEOMETRIES = ("sphere", "ball", "free")
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SMALL_T = 1e-3  # for small t, uniformity is the mean squared distance: log E exp(-t d²) = -t E d² + O(t²)
SPREADS: dict[str, dict[str, float]] = {
    "alignment + uniformity (t = 2)": {"t": 2.0},
    "alignment + mean distance": {"t": SMALL_T, "uniform_weight": 1 / SMALL_T},
}
EPOCHS = 40
EXPLANATIONS = (
    "(a) In unconstrained space there is no optimal encoder. Take any encoder that gives each group its own "
    "vector with ⟨u, u⟩ > ⟨u, v⟩, and scale it by w: each logit gap grows with w², and the loss falls towards 0 "
    "without reaching it. The infimum is not attained, so norms grow as long as training lasts. On sphere and "
    "ball the gaps are bounded by 2/τ and the loss stays above log(1 + M·exp(-2/τ)).",
    "(b) The loss is the cross-entropy of the positive among M negatives. If a negative is at least as near as the "
    "positive, the cross-entropy is at least log 2 for every τ. If every positive is nearer than all negatives, the "
    "loss goes to 0 as τ goes to 0. For small τ the optimal encoder is therefore sufficiently aligned. The table "
    "counts the queries whose positive is nearer than every other item of the training rows.",
    "(c) If all inner products of distinct items grow, both positives and negatives come closer, and the loss may "
    "rise or fall: it depends only on differences. The mean distance between items does not replace uniformity: on "
    "the sphere it depends only on the length of the mean vector, which is 0 even if half of the items are at one "
    "point and the other half at the opposite point. The third table shows the loss in recall.",
)


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Compare geometries over the epochs, temperatures on the sphere, and uniformity with mean distance."""
    over_time, by_temperature, spreads = dict[str, Values](), dict[float, Values](), dict[str, Values]()
    contrastive = partial(configure_objective, "contrastive", num_negatives=64)
    head = {"similarity": Component("dot"), "head": Component("mlp", {"hidden_dim": 256})}
    training = {"epochs": EPOCHS, "weight_decay": 0.0, "max_grad_norm": 1e6}
    for g in GEOMETRIES:
        recipe = experiment.make_recipe(contrastive(temperature=0.1), space=head | {"geometry": g}, **training)
        compute = partial(_track_epochs, experiment)
        over_time[g] = cache.load_or_compute(compute, recipe, sweep="geometry", geometry=g)
    for t in TEMPERATURES:
        objective = contrastive(temperature=t, min_temperature=0.001)
        recipe = experiment.make_recipe(objective, space=head | {"geometry": "sphere"})
        compute = partial(_measure_alignment, experiment)
        by_temperature[t] = cache.load_or_compute(compute, recipe, sweep="temperature", temperature=t)
    for name, settings in SPREADS.items():
        recipe = experiment.make_recipe(configure_objective("align_uniform", **settings))
        compute = partial(_measure_spread, experiment)
        spreads[name] = cache.load_or_compute(compute, recipe, sweep="spread", objective=name)
    geometry_records: list[Record] = [
        {"geometry": g, "loss, first epoch": v["loss"][0], "loss, last epoch": v["loss"][-1]}
        | {"norm, first epoch": v["norm"][0], "norm, last epoch": v["norm"][-1]}
        | {"text → image R@10": v["recall"]}
        for g, v in over_time.items()
    ]
    free, sphere = over_time["free"], over_time["sphere"]
    spread_texts = [
        f"{name}: text → image R@10 {v['text → image R@10']:.1f}%, effective rank {v['effective rank']:.0f}"
        for name, v in spreads.items()
    ]
    conclusions = [
        f"(a) In unconstrained space the mean norm went from {free['norm'][0]:.1f} to {free['norm'][-1]:.1f} in "
        f"{EPOCHS} epochs and the training loss to {free['loss'][-1]:.3f}; on the sphere the norm is 1 and the loss "
        f"ended at {sphere['loss'][-1]:.3f}.",
        f"(b) Sufficiently aligned on the training rows: {by_temperature[TEMPERATURES[0]]['aligned']:.1f}% of the "
        f"queries at temperature {TEMPERATURES[0]:g}, {by_temperature[TEMPERATURES[-1]]['aligned']:.1f}% at "
        f"{TEMPERATURES[-1]:g}.",
        f"(c) {'; '.join(spread_texts)}.",
    ]
    tables: dict[str, list[Record]] = {
        "Geometry": geometry_records,
        "Temperature on the sphere": [
            {"temperature": t, "aligned, training rows (%)": v["aligned"], "text → image R@10": v["recall"]}
            for t, v in by_temperature.items()
        ],
        "Uniformity or mean distance": [{"objective": name, **v} for name, v in spreads.items()],
    }
    draw = partial(_draw_plot, over_time=over_time, by_temperature=by_temperature)
    return StudyResult(tables, conclusions, draw, EXPLANATIONS)


def _track_epochs(experiment: Experiment, recipe: Recipe) -> Values:
    curves: Values = {"loss": [], "norm": []}

    def record_epoch(space: Space, means: dict[str, float]) -> None:
        curves["loss"].append(means["loss"])
        curves["norm"].append(experiment.embed_split(space, "test", "image")[0].embedding.norm(dim=1).mean().item())

    space = experiment.fit(recipe, on_epoch_end=record_epoch)
    return curves | {"recall": experiment.evaluate(space).recall("text", "image", 10)}


def _measure_alignment(experiment: Experiment, recipe: Recipe) -> Values:
    space = experiment.fit(recipe)
    recall = experiment.evaluate(space).recall("text", "image", 10)
    return {"aligned": experiment.evaluate(space, "train").recall("image", "text", 1), "recall": recall}


def _measure_spread(experiment: Experiment, recipe: Recipe) -> Values:
    space = experiment.fit(recipe)
    embedding = experiment.embed_split(space, "test", "image")[0].embedding
    return experiment.evaluate(space).to_dict() | {"effective rank": effective_rank(embedding)}


def _draw_plot(figure: Figure, over_time: dict[str, Values], by_temperature: dict[float, Values]) -> None:
    axes = figure.subplots(1, 3)
    for panel, key, label in ((0, "norm", "mean norm of an image"), (1, "loss", "training loss")):
        series = {g: {float(i + 1): x for i, x in enumerate(v[key])} for g, v in over_time.items()}
        draw_lines(axes[panel], series, "epoch", label)
        set_log_y(axes[panel])
    percentages = {
        "aligned, training rows": {t: v["aligned"] for t, v in by_temperature.items()},
        "text → image R@10": {t: v["recall"] for t, v in by_temperature.items()},
    }
    draw_lines(axes[2], percentages, "temperature (on the sphere)", "%", log_x=True)
    for panel in axes:
        panel.legend(frameon=False, fontsize=8)


STUDY = Study(QUESTION, SETUP, lambda: len(GEOMETRIES) + len(TEMPERATURES) + len(SPREADS), run)
