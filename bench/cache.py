"""Training from cached features: the time of later epochs relative to the first, and the fraction spent reading."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import torch

from bench.real_data import find_dataset, read_flickr8k_captions
from triptych.data.cache import Cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.loader import Loader, sources_of
from triptych.data.manifest import Row
from triptych.interfaces import Encoder, Modality
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer
from triptych.training.step import take_step

NUM_IMAGES, BATCH, REPEATS = 300, 100, 5
RECIPE = """
name = "bench"
[space]
embed_dim = 512
head = "mlp"
similarity = { name = "%s" }
[space.encoders]
image = { name = "efficientnet_lite0" }
text = { name = "minilm" }
[[objectives]]
name = "infonce"
pairs = [["image", "text"]]
[training]
batch_size = %d
"""


def main() -> None:
    """Print the seconds of an epoch without cache, with cache, and for reading only; with and without parts."""
    folder = find_dataset("flickr8k")
    if folder is None:
        sys.exit("flickr8k not available: set TRIPTYCH_DATA to the folder that contains it")
    rows = [
        Row(str(i), None, path, None, tuple(captions), str(i), None, None, None, None, i)
        for i, (path, captions) in enumerate(list(read_flickr8k_captions(folder).items())[:NUM_IMAGES])
    ]
    for similarity in ("cosine", "matchmap"):
        torch.manual_seed(0)
        space = Space(Recipe.parse(RECIPE % (similarity, BATCH)))
        encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
        with tempfile.TemporaryDirectory() as cache_folder:
            started = time.perf_counter()
            features = _load_features(rows, encoders, Cache(cache_folder))
            first_steps = time_epoch(space, rows, encoders, features, train=True)
            first_seconds = time.perf_counter() - started
            later_epochs = [time_epoch(space, rows, encoders, features, train=True) for _ in range(REPEATS)]
            reading = [time_epoch(space, rows, encoders, features, train=False) for _ in range(REPEATS)]
        later_seconds, reading_seconds = statistics.median(later_epochs), statistics.median(reading)
        parts = "parts" if similarity == "matchmap" else "pooled"
        print(
            f"{parts:7} {NUM_IMAGES} images, 5 captions each: first epoch {first_seconds:.1f} s (steps: "
            f"{first_steps:.2f} s); "
            f"later epochs {later_seconds:.3f} s ({min(later_epochs):.3f}–{max(later_epochs):.3f}) = "
            f"{first_seconds / later_seconds:.0f}× faster; "
            f"reading only {reading_seconds:.3f} s = {100 * reading_seconds / later_seconds:.0f}% of a later epoch",
            flush=True,
        )


def _load_features(rows: list[Row], encoders: dict[Modality, Encoder], cache: Cache) -> dict[Modality, CachedFeatures]:
    return {
        m: compute_or_load(encoder, [s for row in rows for s in sources_of(row, m)], cache)
        for m, encoder in encoders.items()
    }


def time_epoch(
    space: Space,
    rows: list[Row],
    encoders: dict[Modality, Encoder],
    features: dict[Modality, CachedFeatures],
    train: bool,
) -> float:
    """Return the seconds of one epoch from cached features. With train=False, features are only read."""
    objectives = ObjectiveSet(space.recipe)
    optimizer = build_optimizer(space.recipe, space, objectives)
    parts = objectives.reads_parts(space)
    loader = Loader(rows, encoders, [("image", "text")], BATCH, 0, precomputed=features, with_parts=parts)
    started = time.perf_counter()
    for batch in loader.iter_epoch(0):
        if train:
            take_step(space, objectives, optimizer, batch, space.recipe.training)
    return time.perf_counter() - started
