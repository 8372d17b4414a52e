"""Do several frames of a video help over one frame in image–audio retrieval?"""

from dataclasses import replace
from functools import partial

import torch
from matplotlib.figure import Figure

from triptych.data.loader import source_of, sources_of
from triptych.data.manifest import Row
from triptych.errors import UsageError
from triptych.interfaces import Modality, Source
from triptych.media.video import read_info
from triptych.recipe import Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import draw_bars
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "Do several frames of a video help over one frame in image–audio retrieval?"
SETUP = (
    "Each row is a video with audio. The image of a video is its middle frame, one of eight frames drawn at random "
    "in each step, or the mean of the features of eight frames. At evaluation, the image is the middle frame or the "
    "mean. Heads over frozen encoders are trained with InfoNCE between images and audio. Three seeds."
)
NUM_FRAMES, SEEDS = 8, (0, 1, 2)
TRAIN_VIEWS = ("one frame", "one of eight, random", "mean of eight")
QUERY_VIEWS = ("one frame", "mean of eight")
RECALL_KEYS = ("image → audio R@10", "audio → image R@10")


def list_frame_sources(row: Row, modality: Modality) -> list[Source]:
    """List evenly spaced frames of a video, the middle frame first. For other rows, list the usual sources."""
    if modality != "image" or row.video is None:
        return sources_of(row, modality)
    length = read_info(row.video).duration
    start, end = row.start or 0.0, min(row.end or length, length)
    step = (end - start) / NUM_FRAMES
    middle = source_of(row, "image")
    return [middle, *(Source("image", row.video, start + i * step, start + (i + 1) * step) for i in range(NUM_FRAMES))]


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Train with each kind of image (one frame, random frame, mean) and evaluate with one frame and with the mean."""
    if int(experiment.splits["train"].vector_counts["image"].max()) < 2:
        hint = "generate videos with `triptych data synthetic FOLDER --video`"
        raise UsageError(f"this study needs rows with a video column; {hint}")
    results: dict[str, list[Values]] = {}
    for view in TRAIN_VIEWS:
        runs = [(seed, _make_recipe(experiment, seed)) for seed in SEEDS]
        compute = partial(_measure, experiment, view)
        results[view] = [cache.load_or_compute(compute, recipe, trained=view, seed=seed) for seed, recipe in runs]
    records: list[Record] = []
    for view, values in results.items():
        keys = [(key, query_view) for query_view in QUERY_VIEWS for key in RECALL_KEYS]
        means = {f"{key}, evaluated with {v}": _average_key(values, f"{key}, {v}") for key, v in keys}
        records.append({"trained with": view, **means})
    single_frame, mean_of_frames = (_average_key(results[v], f"{RECALL_KEYS[0]}, {v}") for v in QUERY_VIEWS)
    conclusions = [
        f"{RECALL_KEYS[0]}: {single_frame:.1f}% trained and evaluated with one frame, "
        f"{mean_of_frames:.1f}% trained and evaluated with the mean of eight."
    ]
    return StudyResult({"Recall in %, mean of three seeds": records}, conclusions, partial(_draw_plot, results=results))


def _average_key(runs: list[Values], key: str) -> float:
    return sum(v[key] for v in runs) / len(runs)


def select_views(table: FeatureTable, view: str) -> FeatureTable:
    """Return the table with one kind of image: the middle frame (listed first), another frame at random, or the mean.

    A row with a single image keeps this image.
    """
    vector_indices, vector_counts, vectors = dict(table.vector_indices), dict(table.vector_counts), dict(table.vectors)
    image_indices, image_counts = table.vector_indices["image"], table.vector_counts["image"]  # (R, C), (R,)
    is_single = image_counts == 1
    frames = torch.where(is_single[:, None], image_indices[:, :1], image_indices[:, 1:])  # (R, C - 1)
    num_frames = torch.where(is_single, 1, (image_counts - 1).clamp_min(0))
    if view == "one frame":
        vector_counts["image"] = image_counts.clamp_max(1)
    elif view == "one of eight, random":
        vector_indices["image"], vector_counts["image"] = frames, num_frames
    else:
        # Padded entries point to images of other rows.
        mask = (torch.arange(frames.shape[1]) < num_frames[:, None])[:, :, None, None]
        sums = (table.vectors["image"][frames] * mask).sum(dim=1)  # (R, 2, W)
        vectors["image"] = sums / num_frames.clamp_min(1)[:, None, None]
        vector_indices["image"], vector_counts["image"] = torch.arange(len(table))[:, None], num_frames.clamp_max(1)
    return replace(table, vector_indices=vector_indices, vector_counts=vector_counts, vectors=vectors)


def _make_recipe(experiment: Experiment, seed: int) -> Recipe:
    objective = configure_objective("infonce", ("image", "audio"))
    return experiment.make_recipe(objective, batch_size=64, epochs=30, seed=seed)


def _measure(experiment: Experiment, view: str, recipe: Recipe) -> Values:
    space = experiment.fit(recipe, select_views(experiment.splits["train"], view))
    recalls: Values = {}
    for query_view in QUERY_VIEWS:
        splits = {"test": select_views(experiment.splits["test"], query_view)}
        query_experiment = Experiment(experiment.encoders, experiment.encoder_names, splits)
        query_recalls = query_experiment.evaluate(space, "test", "image", "audio").to_dict()
        recalls |= {f"{key}, {query_view}": query_recalls[key] for key in RECALL_KEYS}
    return recalls


def _draw_plot(figure: Figure, results: dict[str, list[Values]]) -> None:
    for axes, query_view in zip(figure.subplots(1, 2), QUERY_VIEWS, strict=True):
        recalls = {view: [v[f"{RECALL_KEYS[0]}, {query_view}"] for v in runs] for view, runs in results.items()}
        draw_bars(axes, recalls, f"{RECALL_KEYS[0]} (%)")
        axes.set_title(f"evaluated with {query_view}")


STUDY = Study(QUESTION, SETUP, lambda: len(TRAIN_VIEWS) * len(SEEDS), run, list_frame_sources)
