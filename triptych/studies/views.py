"""What do more views of one moment bring: one frame, several frames, with their sound?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from triptych.contracts import Modality, Source
from triptych.data.loader import source_of, sources_of
from triptych.data.manifest import Row
from triptych.errors import UsageError
from triptych.media.video import info
from triptych.recipe import Recipe
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, Table, use
from triptych.studies.plots import bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What do several frames of a film bring over one picture, when sound is to be found?"
HOW = (
    "Films with sound. A row's picture is one frame from its middle, or eight frames over its length: in training one "
    "of them is drawn each time, or their features are averaged; likewise for the films that are searched with. "
    "InfoNCE between pictures and sound over frozen encoders, three seeds."
)
FRAMES, SEEDS = 8, (0, 1, 2)
TRAINED = ("one frame", "one of eight, drawn", "mean of eight")
ASKED = ("one frame", "mean of eight")


def frames_of(row: Row, modality: Modality) -> list[Source]:
    """A film's frames from evenly spaced moments, the middle one first; of anything else what it has."""
    if modality != "image" or row.video is None:
        return sources_of(row, modality)
    length = info(row.video).duration
    start, end = row.start or 0.0, min(row.end or length, length)
    step = (end - start) / FRAMES
    middle = source_of(row, "image")
    return [middle, *(Source("image", row.video, start + i * step, start + (i + 1) * step) for i in range(FRAMES))]


def cells() -> int:
    """How many cells the study has, at most."""
    return len(TRAINED) * len(SEEDS)


def run(lab: Lab, book: Book) -> Finding:
    """Every way to train, asked in every way."""
    if int(lab.splits["train"].counts["image"].max()) < 2:
        raise UsageError("this study needs films: rows with a video column; `triptych world --films` makes some")
    found = {
        way: [book.cell(partial(_measure, lab, way), _recipe(lab, seed), trained=way, seed=seed) for seed in SEEDS]
        for way in TRAINED
    }
    records: list[Record] = [
        {"trained with": way}
        | {f"{key}, asked with {asked}": _mean(values, f"{key}, {asked}") for asked in ASKED for key in RECALLS}
        for way, values in found.items()
    ]
    plain, rich = (
        _mean(found[way], f"{RECALLS[0]}, {asked}")
        for way, asked in (("one frame", "one frame"), ("mean of eight", "mean of eight"))
    )
    said = [
        f"{RECALLS[0]}: {plain:.1f}% trained and asked with one frame, "
        f"{rich:.1f}% trained and asked with the mean of eight."
    ]
    return Finding({"Recall in %, mean of three seeds": records}, said, partial(_draw, found=found))


RECALLS = ("image → audio R@10", "audio → image R@10")


def _mean(values: list[Values], key: str) -> float:
    return sum(v[key] for v in values) / len(values)


def seen(table: Table, way: str) -> Table:
    """The rows with their pictures as they are seen: the first (a film's middle frame), any of the others, their mean.

    A row of one picture alone is seen by that one, whatever the way.
    """
    places, counts, vectors = dict(table.places), dict(table.counts), dict(table.vectors)
    place, count = table.places["image"], table.counts["image"]  # (R, C), (R,)
    alone = count == 1
    frames = torch.where(alone[:, None], place[:, :1], place[:, 1:])  # (R, C - 1)
    real = torch.where(alone, 1, (count - 1).clamp_min(0))
    if way == "one frame":
        counts["image"] = count.clamp_max(1)
    elif way == "one of eight, drawn":
        places["image"], counts["image"] = frames, real
    else:
        kept = (torch.arange(frames.shape[1]) < real[:, None])[:, :, None, None]  # padding points at another's picture
        sums = (table.vectors["image"][frames] * kept).sum(dim=1)  # (R, 2, W)
        vectors["image"] = sums / real.clamp_min(1)[:, None, None]
        places["image"], counts["image"] = torch.arange(len(table))[:, None], real.clamp_max(1)
    return replace(table, places=places, counts=counts, vectors=vectors)


def _recipe(lab: Lab, seed: int) -> Recipe:
    return lab.recipe(use("infonce", ("image", "audio")), batch=64, epochs=30, seed=seed)


def _measure(lab: Lab, way: str, recipe: Recipe) -> Values:
    space = lab.fit(recipe, seen(lab.splits["train"], way))
    found: Values = {}
    for asked in ASKED:
        other = Lab(lab.encoders, lab.names, {"test": seen(lab.splits["test"], asked)})
        measured = other.measure(space, "test", "image", "audio").values()
        found |= {f"{key}, {asked}": measured[key] for key in RECALLS}
    return found


def _draw(figure: Figure, found: dict[str, list[Values]]) -> None:
    for axes, asked in zip(figure.subplots(1, 2), ASKED, strict=True):
        bars(
            axes, {way: [v[f"{RECALLS[0]}, {asked}"] for v in some] for way, some in found.items()}, f"{RECALLS[0]} (%)"
        )
        axes.set_title(f"asked with {asked}")
