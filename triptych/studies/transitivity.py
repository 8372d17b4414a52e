"""How well do two modalities align that are trained only through a third one?"""

from functools import partial
from itertools import product
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from triptych.errors import UsageError
from triptych.evaluation.chance import compute_chance_recall
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import add_legend, draw_lines
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "How well do text and audio align without text–audio pairs, as the image bridge grows?"
SETUP = (
    "Half of the training rows have only image and text, the other half only image and audio: no row has text and "
    "audio. The heads learn image–text and image–audio by ranking (triplets over all negatives), by distillation "
    "from the 1,000 classes of the image classifier, or by both, with a growing fraction of the rows. The test rows "
    "have all three modalities. One seed."
)
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
PAIRS: tuple[tuple[Modality, Modality], ...] = (("image", "text"), ("image", "audio"))
EMBED_DIM, EPOCHS = 256, 20
METHODS, SUPERVISED = ("ranking", "distillation", "both"), "ranking, with text–audio pairs"
UNTRAINED_KEY, TRAINED_KEY = "text → audio (untrained)", "image → text (trained)"


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Train each method with each fraction of the rows, and once on text–audio pairs for comparison."""
    if set(experiment.encoder_names) != set(MODALITIES):
        modalities = ", ".join(experiment.encoder_names)
        raise UsageError(f"this study needs rows with image, audio and text; the data has {modalities}")
    targets = compute_teacher_targets(experiment)
    results: dict[tuple[str, float], Values] = {}
    for method, fraction in product(METHODS, FRACTIONS):
        table = make_disjoint_pairs(experiment.splits["train"], fraction)
        compute, recipe = partial(measure, experiment, table, targets), make_recipe(experiment, method, fraction)
        results[method, fraction] = cache.load_or_compute(compute, recipe, method=method, fraction=fraction)
    objective = configure_objective("triplet", *PAIRS, ("audio", "text"), negatives="all")
    recipe = experiment.make_recipe(objective, **_make_settings(1.0))
    compute = partial(measure, experiment, None, None)
    supervised = cache.load_or_compute(compute, recipe, method=SUPERVISED, fraction=1.0)
    records: list[Record] = [
        {"method": method, "fraction of rows": f"{fraction:.3g}", **v}
        for (method, fraction), v in (*results.items(), ((SUPERVISED, 1.0), supervised))
    ]
    unsupervised = results["ranking", 1.0]  # the same fit without text–audio pairs
    conclusions = [
        f"With all rows, ranking without text–audio pairs reaches a text → audio R@10 of "
        f"{unsupervised[UNTRAINED_KEY]:.1f}%, {unsupervised[UNTRAINED_KEY] / unsupervised['chance']:.1f} times chance; "
        f"with text–audio pairs it is {supervised[UNTRAINED_KEY]:.1f}%.",
        *(
            f"{method}: {results[method, FRACTIONS[0]][UNTRAINED_KEY]:.1f}% with {FRACTIONS[0]:.3g} of the rows, "
            f"{results[method, 1.0][UNTRAINED_KEY]:.1f}% with all."
            for method in METHODS
        ),
    ]
    return StudyResult({"R@10 in %": records}, conclusions, partial(_draw_plot, results=results))


@torch.inference_mode()
def compute_teacher_targets(experiment: Experiment) -> Tensor:
    """Return the class probabilities that the image encoder gives each training image: (R, C)."""
    table = experiment.splits["train"]
    means = table.vectors["image"][table.vector_indices["image"][:, 0], 0]  # (R, W)
    probabilities = experiment.encoders["image"].class_probabilities(means)
    if probabilities is None:
        name = experiment.encoder_names["image"]
        raise UsageError(f"this study needs an image encoder that is a classifier; {name} is not a classifier")
    return probabilities.clone()


def make_disjoint_pairs(table: FeatureTable, fraction: float) -> FeatureTable:
    """Return a fraction of the rows, alternately without audio and without text."""
    rows = torch.arange(len(table))
    used, is_even = rows < round(fraction * len(table)), rows % 2 == 0
    return table.keep_modalities({"image": used, "text": used & is_even, "audio": used & ~is_even})


def make_recipe(experiment: Experiment, method: str, fraction: float) -> Recipe:
    """Return the recipe that trains image–text and image–audio on a fraction of the rows."""
    distill = configure_objective("distill", *PAIRS, num_classes=1000, embed_dim=EMBED_DIM)
    ranking = configure_objective("triplet", *PAIRS, negatives="all")
    objectives = {"ranking": [ranking], "distillation": [distill], "both": [distill, ranking]}[method]
    return experiment.make_recipe(*objectives, **_make_settings(fraction))


def _make_settings(fraction: float) -> dict[str, Any]:
    """Return the settings of the recipe: fewer rows get up to eight times as many epochs, for as many steps."""
    return {"space": {"embed_dim": EMBED_DIM}, "epochs": round(EPOCHS * min(8, 1 / fraction)), "batch_size": 64}


def measure(
    experiment: Experiment, table: FeatureTable | None, teacher_targets: Tensor | None, recipe: Recipe
) -> Values:
    """Train, and return the recall of the untrained pair text–audio and of the trained pair image–text."""
    space = experiment.fit(recipe, table, teacher_targets)
    untrained = experiment.evaluate(space, "test", "audio", "text")
    trained = experiment.evaluate(space, "test", "image", "text")
    audio_items, group = experiment.splits["test"].collect_items("audio")
    num_positives = len(audio_items) / len(group.unique())
    return {
        UNTRAINED_KEY: untrained.recall("text", "audio", 10),
        "audio → text (untrained)": untrained.recall("audio", "text", 10),
        TRAINED_KEY: trained.recall("image", "text", 10),
        "chance": 100 * float(compute_chance_recall(len(audio_items), round(num_positives), 10)),
    }


def _draw_plot(figure: Figure, results: dict[tuple[str, float], Values]) -> None:
    for axes, key in zip(figure.subplots(1, 2), (UNTRAINED_KEY, TRAINED_KEY), strict=True):
        series = {method: {fraction: results[method, fraction][key] for fraction in FRACTIONS} for method in METHODS}
        series["chance"] = {fraction: results[METHODS[0], fraction]["chance"] for fraction in FRACTIONS}
        draw_lines(axes, series, "fraction of rows", "R@10 (%)", log_x=True, title=key)
    add_legend(figure)


STUDY = Study(QUESTION, SETUP, lambda: len(FRACTIONS) * len(METHODS) + 1, run)
