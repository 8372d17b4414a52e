"""How well do two modalities meet that were never trained together, as the bridge between them grows?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from triptych.errors import UsageError
from triptych.evaluation.retrieval import compute_chance_recall
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import ObjectiveConfig, Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.plots import add_legend, draw_lines
from triptych.studies.result_cache import Record, ResultCache, StudyResult, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How well do text and sound meet that were never trained together, as the bridge of pictures grows?"
SETUP = (
    "Every second training row keeps its picture and its text, every other its picture and its sound: no row has text "
    "and sound. The heads learn image–text and image–audio by ranking (triplets over all negatives), by distillation "
    "from the image classifier's 1,000 classes, or by both, with a growing share of the rows. Measured on test rows "
    "that have all three. One seed."
)
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PAIRS: tuple[tuple[Modality, Modality], ...] = (("image", "text"), ("image", "audio"))
EMBED_DIM, EPOCHS = 256, 20
METHODS = ("ranking", "distillation", "both")
UNTRAINED_KEY, TRAINED_KEY = "text → audio (never trained)", "image → text (trained)"


def count_runs() -> int:
    """How many cells the study has, at most."""
    return len(FRACTIONS) * len(METHODS) + 1


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Each way at each share, and one fit that is trained on text and sound, for comparison."""
    if set(experiment.encoder_names) != set(MODALITIES):
        raise UsageError(
            f"this study needs rows with image, audio and text; the data has {', '.join(experiment.encoder_names)}"
        )
    teacher_targets = compute_teacher_targets(experiment)
    results = {
        (method, fraction): cache.cached_run(
            partial(measure, experiment, teacher_targets, fraction),
            make_bridge_recipe(experiment, method, fraction),
            method=method,
            fraction=fraction,
        )
        for method in METHODS
        for fraction in FRACTIONS
    }
    supervised_recipe = experiment.make_recipe(
        configure_objective("triplet", *PAIRS, ("audio", "text"), negatives="all"), **_training_settings(1.0)
    )
    supervised = cache.cached_run(
        lambda recipe: _measure_recalls(experiment, experiment.fit(recipe)),
        supervised_recipe,
        method="trained on text and audio",
        fraction=1.0,
    )
    records: list[Record] = [
        {"trained by": method, "rows": f"{fraction:.3g}", **v} for (method, fraction), v in results.items()
    ]
    records.append({"trained by": "ranking, text and sound too", "rows": "1", **supervised})
    unsupervised = results["ranking", 1.0]  # as the fit it is held against
    conclusions = [
        f"With all rows, ranking finds the sound for a text it was never paired with in {unsupervised[UNTRAINED_KEY]:.1f}% of the "
        f"cases among the first ten, {unsupervised[UNTRAINED_KEY] / unsupervised['chance']:.1f} times chance; trained on text and sound it is "
        f"{supervised[UNTRAINED_KEY]:.1f}%.",
        *(
            f"{method}: {results[method, FRACTIONS[0]][UNTRAINED_KEY]:.1f}% with {FRACTIONS[0]:.3g} of the rows, "
            f"{results[method, 1.0][UNTRAINED_KEY]:.1f}% with all."
            for method in METHODS
        ),
    ]
    return StudyResult({"R@10 in %": records}, conclusions, partial(_draw, results=results))


@torch.inference_mode()
def compute_teacher_targets(experiment: Experiment) -> Tensor:
    """What the image encoder, as a classifier, says of every training row's picture: (R, C)."""
    table = experiment.splits["train"]
    probabilities = experiment.encoders["image"].class_probabilities(
        table.vectors["image"][table.vector_indices["image"][:, 0], 0]
    )
    if probabilities is None:
        raise UsageError(
            f"this study needs an image encoder that was taught classes; {experiment.encoder_names['image']} was not"
        )
    return probabilities.clone()


def make_disjoint_pairs(table: FeatureTable, fraction: float) -> FeatureTable:
    """A share of the rows, every second without sound, every other without text."""
    rows = torch.arange(len(table))
    is_used = rows < round(fraction * len(table))
    return table.keep_modalities(
        {"image": is_used, "text": is_used & (rows % 2 == 0), "audio": is_used & (rows % 2 == 1)}
    )


def _make_objectives(method: str) -> list[ObjectiveConfig]:
    distill = configure_objective("distill", *PAIRS, num_classes=1000, embed_dim=EMBED_DIM)
    ranking = configure_objective("triplet", *PAIRS, negatives="all")
    return {"ranking": [ranking], "distillation": [distill], "both": [distill, ranking]}[method]


def make_bridge_recipe(experiment: Experiment, method: str, fraction: float) -> Recipe:
    """How image–text and image–audio are learned from a share of the rows."""
    return experiment.make_recipe(*_make_objectives(method), **_training_settings(fraction))


def measure(experiment: Experiment, teacher_targets: Tensor, fraction: float, recipe: Recipe) -> Values:
    """Recall on the pair that was never trained, and on one that was."""
    return _measure_recalls(
        experiment, experiment.fit(recipe, make_disjoint_pairs(experiment.splits["train"], fraction), teacher_targets)
    )


def _training_settings(fraction: float) -> dict[str, Any]:
    """As many steps for few rows as for many, up to eight times as many epochs."""
    return {"space": {"embed_dim": EMBED_DIM}, "epochs": round(EPOCHS * min(8, 1 / fraction)), "batch_size": 64}


def _measure_recalls(experiment: Experiment, space: Any) -> Values:
    untrained, trained = (
        experiment.evaluate(space, "test", "audio", "text"),
        experiment.evaluate(space, "test", "image", "text"),
    )
    audio_items, group = experiment.splits["test"].collect_items("audio")
    num_positives = len(audio_items) / len(group.unique())
    return {
        UNTRAINED_KEY: untrained.recall("text", "audio", 10),
        "audio → text (never trained)": untrained.recall("audio", "text", 10),
        TRAINED_KEY: trained.recall("image", "text", 10),
        "chance": 100 * float(compute_chance_recall(len(audio_items), round(num_positives), 10)),
    }


def _draw(figure: Figure, results: dict[tuple[str, float], Values]) -> None:
    for axes, key in zip(figure.subplots(1, 2), (UNTRAINED_KEY, TRAINED_KEY), strict=True):
        series = {method: {fraction: results[method, fraction][key] for fraction in FRACTIONS} for method in METHODS}
        series["chance"] = {fraction: results[METHODS[0], fraction]["chance"] for fraction in FRACTIONS}
        draw_lines(axes, series, "share of the rows", "R@10 (%)", log_x=True, title=key)
    add_legend(figure)
