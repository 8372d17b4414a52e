"""What do more views of one moment bring: one frame, several frames, with their sound?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from triptych.data.loader import source_of, sources_of
from triptych.data.manifest import Row
from triptych.errors import UsageError
from triptych.interfaces import Modality, Source
from triptych.media.video import read_info
from triptych.recipe import Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.plots import draw_bars
from triptych.studies.result_cache import Record, ResultCache, StudyResult, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What do several frames of a film bring over one picture, when sound is to be found?"
SETUP = (
    "Films with sound. A row's picture is one frame from its middle, or eight frames over its length: in training one "
    "of them is drawn each time, or their features are averaged; likewise for the films that are searched with. "
    "InfoNCE between pictures and sound over frozen encoders, three seeds."
)
NUM_FRAMES, SEEDS = 8, (0, 1, 2)
TRAIN_VIEWS = ("one frame", "one of eight, drawn", "mean of eight")
QUERY_VIEWS = ("one frame", "mean of eight")


def list_frame_sources(row: Row, modality: Modality) -> list[Source]:
    """A film's frames from evenly spaced moments, the middle one first; of anything else what it has."""
    if modality != "image" or row.video is None:
        return sources_of(row, modality)
    length = read_info(row.video).duration
    start, end = row.start or 0.0, min(row.end or length, length)
    step = (end - start) / NUM_FRAMES
    middle = source_of(row, "image")
    return [middle, *(Source("image", row.video, start + i * step, start + (i + 1) * step) for i in range(NUM_FRAMES))]


def count_runs() -> int:
    """How many cells the study has, at most."""
    return len(TRAIN_VIEWS) * len(SEEDS)


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Every way to train, asked in every way."""
    if int(experiment.splits["train"].vector_counts["image"].max()) < 2:
        raise UsageError(
            "this study needs films: rows with a video column; generate some: `triptych data synthetic FOLDER --video`"
        )
    results = {
        view: [
            cache.cached_run(
                partial(_measure, experiment, view), _make_recipe(experiment, seed), trained=view, seed=seed
            )
            for seed in SEEDS
        ]
        for view in TRAIN_VIEWS
    }
    records: list[Record] = [
        {"trained with": view}
        | {
            f"{key}, asked with {query_view}": _mean_of_key(values, f"{key}, {query_view}")
            for query_view in QUERY_VIEWS
            for key in RECALL_KEYS
        }
        for view, values in results.items()
    ]
    single_frame, mean_of_frames = (
        _mean_of_key(results[view], f"{RECALL_KEYS[0]}, {query_view}")
        for view, query_view in (("one frame", "one frame"), ("mean of eight", "mean of eight"))
    )
    conclusions = [
        f"{RECALL_KEYS[0]}: {single_frame:.1f}% trained and asked with one frame, "
        f"{mean_of_frames:.1f}% trained and asked with the mean of eight."
    ]
    return StudyResult({"Recall in %, mean of three seeds": records}, conclusions, partial(_draw, results=results))


RECALL_KEYS = ("image → audio R@10", "audio → image R@10")


def _mean_of_key(runs: list[Values], key: str) -> float:
    return sum(v[key] for v in runs) / len(runs)


def select_views(table: FeatureTable, view: str) -> FeatureTable:
    """The rows with their pictures as they are seen: the first (a film's middle frame), any of the others, their mean.

    A row of one picture alone is seen by that one, whatever the way.
    """
    vector_indices, vector_counts, vectors = dict(table.vector_indices), dict(table.vector_counts), dict(table.vectors)
    image_indices, image_counts = table.vector_indices["image"], table.vector_counts["image"]  # (R, C), (R,)
    is_single = image_counts == 1
    frames = torch.where(is_single[:, None], image_indices[:, :1], image_indices[:, 1:])  # (R, C - 1)
    num_frames = torch.where(is_single, 1, (image_counts - 1).clamp_min(0))
    if view == "one frame":
        vector_counts["image"] = image_counts.clamp_max(1)
    elif view == "one of eight, drawn":
        vector_indices["image"], vector_counts["image"] = frames, num_frames
    else:
        mask = (torch.arange(frames.shape[1]) < num_frames[:, None])[
            :, :, None, None
        ]  # padding points at another's picture
        sums = (table.vectors["image"][frames] * mask).sum(dim=1)  # (R, 2, W)
        vectors["image"] = sums / num_frames.clamp_min(1)[:, None, None]
        vector_indices["image"], vector_counts["image"] = torch.arange(len(table))[:, None], num_frames.clamp_max(1)
    return replace(table, vector_indices=vector_indices, vector_counts=vector_counts, vectors=vectors)


def _make_recipe(experiment: Experiment, seed: int) -> Recipe:
    return experiment.make_recipe(
        configure_objective("infonce", ("image", "audio")), batch_size=64, epochs=30, seed=seed
    )


def _measure(experiment: Experiment, view: str, recipe: Recipe) -> Values:
    space = experiment.fit(recipe, select_views(experiment.splits["train"], view))
    recalls: Values = {}
    for query_view in QUERY_VIEWS:
        query_experiment = Experiment(
            experiment.encoders, experiment.encoder_names, {"test": select_views(experiment.splits["test"], query_view)}
        )
        query_recalls = query_experiment.evaluate(space, "test", "image", "audio").to_dict()
        recalls |= {f"{key}, {query_view}": query_recalls[key] for key in RECALL_KEYS}
    return recalls


def _draw(figure: Figure, results: dict[str, list[Values]]) -> None:
    for axes, query_view in zip(figure.subplots(1, 2), QUERY_VIEWS, strict=True):
        draw_bars(
            axes,
            {view: [v[f"{RECALL_KEYS[0]}, {query_view}"] for v in runs] for view, runs in results.items()},
            f"{RECALL_KEYS[0]} (%)",
        )
        axes.set_title(f"asked with {query_view}")
