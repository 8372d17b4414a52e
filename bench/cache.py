"""Training from the cache: the second epoch beside the first, and which share of it is reading."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import torch

from bench.real_data import find, flickr8k_captions
from triptych.contracts import Encoder, Modality
from triptych.data.cache import Cache
from triptych.data.features import Remembered, remember
from triptych.data.loader import Loader, sources_of
from triptych.data.manifest import Row
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.optimizer import optimizer_of
from triptych.training.step import take_step
from triptych.training.terms import Terms

PICTURES, BATCH, REPEATS = 300, 100, 5
RECIPE = """
name = "bench"
[space]
width = 512
head = "mlp"
similarity = { name = "%s" }
[space.encoders]
image = { name = "efficientnet_lite0" }
text = { name = "minilm" }
[[objectives]]
name = "infonce"
pairs = [["image", "text"]]
[training]
batch = %d
"""


def main() -> None:
    """Print the seconds of an epoch without and with the cache, and what of it is reading, with and without parts."""
    folder = find("flickr8k")
    if folder is None:
        sys.exit("no flickr8k here: set TRIPTYCH_DATA to the folder that holds it")
    rows = [
        Row(str(i), None, path, None, tuple(captions), str(i), None, None, None, None, i)
        for i, (path, captions) in enumerate(list(flickr8k_captions(folder).items())[:PICTURES])
    ]
    for similarity in ("cosine", "matchmap"):
        torch.manual_seed(0)
        space = Space(Recipe.parse(RECIPE % (similarity, BATCH)))
        encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
        with tempfile.TemporaryDirectory() as place:
            started = time.perf_counter()
            known = _filled(rows, encoders, Cache(place))
            step = epoch(space, rows, encoders, known, learn=True)
            first = time.perf_counter() - started
            again = [epoch(space, rows, encoders, known, learn=True) for _ in range(REPEATS)]
            reading = [epoch(space, rows, encoders, known, learn=False) for _ in range(REPEATS)]
        second, read = statistics.median(again), statistics.median(reading)
        parts = "parts" if similarity == "matchmap" else "pooled"
        print(
            f"{parts:7} {PICTURES} pictures, 5 captions each: first epoch {first:.1f} s (of it steps {step:.2f} s); "
            f"later epochs {second:.3f} s ({min(again):.3f}–{max(again):.3f}) = {first / second:.0f}× faster; "
            f"reading alone {read:.3f} s = {100 * read / second:.0f}% of it",
            flush=True,
        )


def _filled(rows: list[Row], encoders: dict[Modality, Encoder], cache: Cache) -> dict[Modality, Remembered]:
    return {
        m: remember(encoder, [s for row in rows for s in sources_of(row, m)], cache) for m, encoder in encoders.items()
    }


def epoch(
    space: Space,
    rows: list[Row],
    encoders: dict[Modality, Encoder],
    known: dict[Modality, Remembered],
    learn: bool,
) -> float:
    """Seconds of one epoch from features at hand; without learning, of reading them alone."""
    terms = Terms(space.recipe)
    optimizer = optimizer_of(space.recipe, space, terms)
    parts = terms.reads_parts(space)
    loader = Loader(rows, encoders, [("image", "text")], BATCH, 0, known=known, parts=parts)
    started = time.perf_counter()
    for batch in loader.epoch(0):
        if learn:
            take_step(space, terms, optimizer, batch, space.recipe.training)
    return time.perf_counter() - started
