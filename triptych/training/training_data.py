"""The rows that a recipe trains and validates on, and the loader that makes batches of them."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from triptych.data import manifest
from triptych.data.cache import Cache, resolve_cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.loader import Loader, source_of, sources_of
from triptych.data.manifest import Row
from triptych.encoders import ENCODERS
from triptych.errors import MediaError, TrainingError
from triptych.interfaces import Encoder, Modality, Source
from triptych.media.audio import read_duration, sliding_windows
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run, the errors of unusable rows, and the hashes of the manifests."""

    train: Sequence[Row]
    valid: Sequence[Row]
    row_errors: Sequence[str]
    manifest_hashes: dict[str, str]  # SHA-256 of each manifest, by its file name

    @property
    def data_hash(self) -> str:
        """A single hash over all manifests."""
        first, *others = self.manifest_hashes.values()
        return hashlib.sha256("".join([first, *others]).encode()).hexdigest() if others else first


def load_training_data(recipe: Recipe, show_progress: bool) -> TrainingData:
    """Read the training and validation rows of all manifests of a recipe."""
    paths = [Path(path) for path in (recipe.data.manifest, *recipe.data.extra_manifests) if path]
    if not paths:
        raise TrainingError(
            "the recipe names no manifest; give data=… or --data MANIFEST, or add data.manifest to the recipe"
        )
    tables = [manifest.read(path, recipe.data.allow_outside) for path in paths]
    train, valid, row_errors = list[Row](), list[Row](), list[str]()
    manifest_hashes: dict[str, str] = {}
    valid_split = recipe.data.valid_split
    for i, table in enumerate(tables):
        # Groups of different manifests are unrelated, even if their group keys are equal.
        prefix = f"{i} " if i else ""
        train_rows = _select_training_rows(table, recipe, show_progress)
        train += [replace(row, group=prefix + row.group) for row in train_rows]
        if valid_split in table.counts.splits and valid_split != recipe.data.train_split:
            valid += [replace(row, group=prefix + row.group) for row in table.split(valid_split).rows]
        row_errors += map(str, table.errors)
        # Use only the file name: run folders are shared, and the path of the data is private.
        name = f"{table.path.name} ({i + 1})" if table.path.name in manifest_hashes else table.path.name
        manifest_hashes[name] = hashlib.sha256(table.path.read_bytes()).hexdigest()
    return TrainingData(train, valid, row_errors, manifest_hashes)


def _select_training_rows(table: manifest.Manifest, recipe: Recipe, show_progress: bool) -> Sequence[Row]:
    """Return the training rows (all rows if there are no splits). Print the number of unusable rows."""
    counts = table.counts
    if counts.unusable:
        unusable = f"{counts.unusable} of {counts.rows + counts.unusable} rows"
        message = f"{unusable} cannot be used; `triptych validate {shlex.quote(str(table.path))}` lists the reasons"
        if not table.rows:
            raise TrainingError(message)
        notify(message, show_progress)
    if counts.splits:
        return table.split(recipe.data.train_split).rows
    notify(f"{table.path}: no row has a split; training on all {counts.rows} rows", show_progress)
    return table.rows


def drop_absent_modalities(recipe: Recipe, rows: Sequence[Row], show_progress: bool) -> Recipe:
    """Return the recipe without the modalities that no row has; print a notice for each of them."""
    available: set[Modality] = {m for row in rows for m in row.modalities}
    for modality in recipe.space.encoders:
        if modality not in available:
            outcome = "keeps its embeddings" if recipe.training.init else "is not in the space"
            notify(f"no row has {modality}: {modality} {outcome}", show_progress)
    return recipe.restrict_to(available)


def build_loader(
    recipe: Recipe,
    rows: Sequence[Row],
    space: Space,
    with_parts: bool,
    context: DistributedContext,
    show_progress: bool,
) -> Loader:
    """Build the loader of the rows that have a trained pair; print a notice for each pair that no row has."""
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    data = recipe.data
    if data.all_windows and "audio" in encoders and math.isfinite(encoders["audio"].max_seconds):
        rows = split_into_windows(rows, encoders["audio"].max_seconds, data.hop_seconds)
    pairs = dict.fromkeys(pair for config in recipe.objectives for pair in config.pairs)
    loader = Loader(
        rows,
        encoders,
        pairs,
        recipe.training.batch_size,
        recipe.training.seed,
        data.workers,
        data.input_cache_mb,
        precomputed=load_features(recipe, rows, encoders, context, show_progress),
        with_parts=with_parts,
        weights=data.sampling_weights,
        teacher=compute_teacher_targets(recipe, rows, show_progress, context),
        shard=(context.rank, context.world_size),
        all_reduce_sum=context.all_reduce_sum,
    )
    for a, b in pairs:
        if not any(a in modalities and b in modalities for modalities in loader.modality_sets):
            notify(f"no row has both {a} and {b}: this pair is not trained", show_progress)
    return loader


def split_into_windows(rows: Sequence[Row], window_seconds: float, hop_seconds: float) -> list[Row]:
    """Split rows whose audio or video is longer than `window_seconds` into one row per window, all of one group."""
    window_rows: list[Row] = []
    for row in rows:
        path = row.audio or row.video
        try:
            media_seconds = read_duration(path) if path else 0.0
        except MediaError:
            media_seconds = 0.0  # the loader reports the unreadable file
        start, end = row.start or 0.0, min(row.end or media_seconds, media_seconds)
        if end - start <= window_seconds:
            window_rows.append(row)
            continue
        windows = enumerate(sliding_windows(end - start, window_seconds, hop_seconds or window_seconds))
        window_rows += [replace(row, id=f"{row.id} {i}", start=start + a, end=start + b) for i, (a, b) in windows]
    return window_rows


def compute_teacher_targets(
    recipe: Recipe, rows: Sequence[Row], show_progress: bool, context: DistributedContext = SINGLE_PROCESS
) -> dict[Source, Tensor]:
    """Return the teacher's class probabilities for each image in float16; empty if the recipe has no teacher."""
    if not recipe.data.teacher:
        return {}
    teacher, cache = ENCODERS[recipe.data.teacher](), resolve_cache(recipe.data.cache) or Cache.default()
    sources = [source_of(row, "image") for row in rows if "image" in row.modalities]
    title = "teacher features" if show_progress else None
    shard, workers = (context.rank, context.world_size), recipe.data.workers
    features = compute_or_load(teacher.to(context.device), sources, cache, workers, title, shard, context.barrier)
    with torch.inference_mode():
        probabilities = teacher.cpu().class_probabilities(features.pooled[:, 0])
    if probabilities is None:
        raise TrainingError(f"data.teacher: {recipe.data.teacher} is not a classifier")
    return dict(zip(features.index_of, probabilities.half(), strict=True))


def load_features(
    recipe: Recipe,
    rows: Sequence[Row],
    encoders: Mapping[Modality, Encoder],
    context: DistributedContext,
    show_progress: bool,
) -> dict[Modality, CachedFeatures]:
    """Compute the features of all rows with the frozen encoders, or load them from the cache."""
    cache, workers, shard = resolve_cache(recipe.data.cache), recipe.data.workers, (context.rank, context.world_size)
    features = {}
    for m, encoder in encoders.items():
        if cache and (encoder.frozen or recipe.training.init):  # a warm start freezes all encoders
            sources = [source for row in rows if m in row.modalities for source in sources_of(row, m)]
            title = f"{m} features" if show_progress else None
            features[m] = compute_or_load(encoder, sources, cache, workers, title, shard, context.barrier)
    return features
