"""What are negatives for, and which ones help?"""

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from triptych.recipe import Recipe
from triptych.space import Space
from triptych.studies.experiment import Experiment, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import add_legend, draw_lines
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "What are negatives for, and which ones help?"
SETUP = (
    "The same heads are trained for twelve epochs with different negatives: none (alignment only), a few random "
    "negatives, semi-hard negatives, the hardest negative, or all items of the batch. The negatives are used in a "
    "contrastive loss or in triplets. After each epoch, the mean cosine of mismatched image–text pairs is measured: "
    "1 means that all embeddings have collapsed to one point. One seed."
)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "none (alignment only)": ("align_uniform", {"uniform_weight": 0.0}),
    "contrastive, 1": ("contrastive", {"num_negatives": 1}),
    "contrastive, 4": ("contrastive", {"num_negatives": 4}),
    "contrastive, 64": ("contrastive", {"num_negatives": 64}),
    "contrastive, all (infonce)": ("infonce", {}),
    "triplet, random": ("triplet", {"negatives": "random"}),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}),
    "triplet, hardest": ("triplet", {"negatives": "hardest"}),
    "triplet, all": ("triplet", {"negatives": "all"}),
    "triplet, random + semi-hard": ("triplet", {"negatives": "random"}),
}
COMBINED = "triplet, random + semi-hard"
EXPLANATIONS = (
    "Without negatives nothing keeps items apart: the same vector for all items is a minimum of alignment.",
    "A triplet has no gradient once its margin is met. With random negatives, most triplets meet the margin early "
    "and contribute no gradient. Semi-hard negatives always have a gradient. The hardest negative of a large batch "
    "is often an unlabelled positive.",
    "In a contrastive loss, the softmax weights the negatives: the nearest negatives get most of the gradient.",
)


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Compare the choices of negatives, evaluated after each epoch."""
    results = {name: run_method(experiment, cache, name) for name in METHODS}
    records: list[Record] = [
        {"negatives": name, "text → image R@1": v["text → image R@1"], "text → image R@10": v["text → image R@10"]}
        | {"mismatched cosine, first epoch": v["mismatched"][0], "mismatched cosine, last epoch": v["mismatched"][-1]}
        | {"matched cosine": v["matched"]}
        for name, v in results.items()
    ]
    none = results["none (alignment only)"]
    best = max(results, key=lambda name: results[name]["recalls"][-1])
    conclusions = [
        f"Without negatives the mean cosine of mismatched pairs rises to {none['mismatched'][-1]:.3f} and R@10 is "
        f"{none['text → image R@10']:.1f}%.",
        f"Highest text → image R@10 on the validation rows: **{best}** ({results[best]['recalls'][-1]:.1f}%).",
    ]
    return StudyResult({"Negatives": records}, conclusions, partial(_draw_plot, results=results), EXPLANATIONS)


def run_method(experiment: Experiment, cache: ResultCache, name: str) -> Values:
    """Train with one choice of negatives."""
    objective, settings = METHODS[name]
    configs = [configure_objective(objective, **settings)]
    if name == COMBINED:
        configs.append(configure_objective("triplet", negatives="semi_hard"))
    return cache.load_or_compute(partial(_track_epochs, experiment), experiment.make_recipe(*configs), negatives=name)


def _track_epochs(experiment: Experiment, recipe: Recipe) -> Values:
    mismatched, recalls = list[float](), list[float]()

    def record_epoch(space: Space, _: dict[str, float]) -> None:
        mismatched.append(_compute_mean_cosines(experiment, space)[0])
        recalls.append(experiment.evaluate(space, "valid").recall("text", "image", 10))

    space = experiment.fit(recipe, on_epoch_end=record_epoch)
    curves = {"mismatched": mismatched, "recalls": recalls, "matched": _compute_mean_cosines(experiment, space)[1]}
    return experiment.evaluate(space).to_dict() | curves


def _compute_mean_cosines(experiment: Experiment, space: Space) -> tuple[float, float]:
    """Return the mean cosine of images with texts of other groups, and with texts of the same group."""
    (image, a), (text, b) = (experiment.embed_split(space, "valid", m) for m in ("image", "text"))
    cosines, same_group = image.embedding @ text.embedding.T, a[:, None] == b
    return cosines[~same_group].mean().item(), cosines[same_group].mean().item()


def _draw_plot(figure: Figure, results: dict[str, Values]) -> None:
    labels = {"mismatched": "mean cosine of mismatched pairs", "recalls": "text → image R@10, validation (%)"}
    for axes, (key, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        series = {name: {float(i + 1): x for i, x in enumerate(v[key])} for name, v in results.items()}
        draw_lines(axes, series, "epoch", label)
    add_legend(figure)


STUDY = Study(QUESTION, SETUP, lambda: len(METHODS), run)
