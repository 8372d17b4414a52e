"""train(): the whole method, top to bottom."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from triptych.data import manifest
from triptych.data.cache import Cache, resolve_cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.loader import Loader, source_of, sources_of
from triptych.encoders import ENCODERS
from triptych.errors import InputError, TrainingError
from triptych.interfaces import Encoder, Modality, Source
from triptych.progress import ProgressBar, notify, track_progress
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext, check_batch_norm, init_distributed
from triptych.training.environment import describe_environment
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer, set_learning_rates
from triptych.training.run_directory import ResumeState, RunDirectory
from triptych.training.step import check_divergence, format_losses, take_step
from triptych.training.training_data import TrainingData, load_training_data, split_into_windows
from triptych.training.validation import EarlyStopping, compute_validation_score, has_validation_pairs


def train(recipe: Recipe, folder: str | Path, restart: bool = False, show_progress: bool = True) -> Space:
    """Train a space on the recipe's manifests into a run folder; an interrupted run goes on where it was.

    The same recipe, seed and data give the same weights on the same machine, interrupted or not. Where rows are kept
    for validation, the space of the best epoch is returned and saved for use, else that of the last. Started by
    torchrun, the processes share the encoding of every batch, and the first of them writes.
    """
    with init_distributed() as context:
        show_progress = show_progress and context.is_main
        data = load_training_data(recipe, show_progress)
        recipe = _drop_absent_modalities(recipe, data.train, show_progress)
        if data.valid and not has_validation_pairs(data.valid, recipe):
            notify(
                f"no row of split {recipe.data.valid_split} has a pair that is trained: the last epoch will be kept",
                show_progress,
            )
            data = replace(data, valid=())
        run = RunDirectory(Path(folder), recipe, data, context.is_main)
        with run.lock():
            resume_state = None if restart else run.load_resume_state()
            if resume_state:
                notify(
                    f"{run.folder}: {resume_state.epochs_done} of {recipe.training.epochs} epochs are done already",
                    show_progress,
                )
            return _train(recipe, data, run, resume_state, context, show_progress)


def _train(
    recipe: Recipe,
    data: TrainingData,
    run: RunDirectory,
    resume_state: ResumeState | None,
    context: DistributedContext,
    show_progress: bool,
) -> Space:
    """The method: a space, its objectives, their optimizer and the batches; then epoch by epoch."""
    torch.manual_seed(recipe.training.seed)
    space = resume_state.space if resume_state else Space(recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    if not resume_state:
        for modality, encoder in encoders.items():
            encoder.fit_vocabulary(
                s for row in data.train if modality in row.modalities for s in sources_of(row, modality)
            )
    objectives = ObjectiveSet(recipe)
    space.to(context.device)
    objectives.to(context.device)
    optimizer = build_optimizer(recipe, space, objectives)
    if resume_state:
        run.restore_state(resume_state, objectives, optimizer)
    early_stopping = resume_state.early_stopping if resume_state else EarlyStopping()
    run.check_disk_space(space, objectives, optimizer)
    context.broadcast_parameters([space, objectives])
    check_batch_norm(space.train(), recipe, context)
    loader = _build_loader(
        recipe,
        _split_long_rows(recipe, data.train, encoders),
        encoders,
        objectives.reads_parts(space),
        context,
        show_progress,
    )

    first_epoch, epochs, steps = (
        (resume_state.epochs_done if resume_state else 0),
        recipe.training.epochs,
        loader.steps_per_epoch,
    )
    if first_epoch != context.broadcast(first_epoch):
        raise TrainingError(f"{run.folder}: is not the same folder for every process; give one that all of them see")
    run.start(first_epoch, describe_environment(context.world_size, context.device))
    with track_progress("training", epochs * steps, show_progress) as progress:
        progress.advance(first_epoch * steps)
        for epoch in range(first_epoch, epochs):
            if early_stopping.should_stop(recipe.training.patience):
                break
            epoch_started = time.monotonic()
            means = train_one_epoch(
                space, objectives, optimizer, loader, epoch, run, context, progress, f"{early_stopping}"
            )
            if _should_validate(epoch, recipe, data):
                means["valid"] = context.broadcast(
                    compute_validation_score(space, data.valid, recipe) if context.is_main else 0.0
                )
                early_stopping = early_stopping.update(means["valid"])
            else:
                early_stopping = early_stopping.skip()
            skip_reasons = [*data.row_errors, *context.all_gather_strings(loader.failures.values())]
            metrics = {"epoch": epoch + 1, "seconds": round(time.monotonic() - epoch_started, 2), **means}
            run.save_epoch(metrics, skip_reasons, space, objectives, optimizer, early_stopping)
    context.barrier()
    return run.finalize(space)


def _should_validate(epoch: int, recipe: Recipe, data: TrainingData) -> bool:
    """Whether the validation rows are looked at after this epoch: every so many, and the last."""
    training = recipe.training
    is_due = training.eval_every > 0 and ((epoch + 1) % training.eval_every == 0 or epoch + 1 == training.epochs)
    return is_due and bool(data.valid)


def train_one_epoch(
    space: Space,
    objectives: ObjectiveSet,
    optimizer: torch.optim.Optimizer,
    loader: Loader,
    epoch: int,
    run: RunDirectory,
    context: DistributedContext,
    progress: ProgressBar,
    status: str,
) -> dict[str, float]:
    """One epoch: a step down the gradient for every batch. Returns the mean of every term, and how many steps."""
    recipe, steps = space.recipe, loader.steps_per_epoch
    training = recipe.training
    # Seeded anew each epoch, so that a resumed run draws what an unbroken one would have drawn.
    context.seed(training.seed * 1_000_003 + epoch + 1)
    space.train()
    started, num_pairs, totals, counts = time.monotonic(), 0, Counter[str](), Counter[str]()
    first_values: dict[str, float] = {}
    for step, batch in enumerate(loader.iter_epoch(epoch)):
        set_learning_rates(optimizer, recipe, epoch * steps + step, training.epochs * steps)
        try:
            values = take_step(space, objectives, optimizer, batch.to(context.device), training, context)
            first_values = values | first_values
            check_divergence(values, first_values)
        except InputError as error:
            raise run.abort(f"epoch {epoch + 1}, step {step + 1}: {error}", batch.row_ids) from error
        totals.update(values)
        counts.update(values.keys())
        pairs_per_second = (num_pairs := num_pairs + context.world_size * len(batch.group)) / (
            time.monotonic() - started
        )
        progress.advance(
            1, f"epoch {epoch + 1}/{training.epochs} · {format_losses(values)} · {pairs_per_second:.0f} pairs/s{status}"
        )
    if not totals:
        raise TrainingError(loader.describe_empty_epoch())
    return (
        {"steps": counts["loss"]}
        | {name: total / counts[name] for name, total in totals.items()}
        | objectives.metrics_to_log()
    )


def _drop_absent_modalities(recipe: Recipe, rows: Sequence[manifest.Row], show_progress: bool) -> Recipe:
    """The recipe without the modalities that no row has; that is said."""
    available: set[Modality] = {m for row in rows for m in row.modalities}
    for modality in recipe.space.encoders:
        if modality not in available:
            notify(f"no row has {modality}: the space will not know it", show_progress)
    return recipe.restrict_to(available)


def _split_long_rows(
    recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder]
) -> Sequence[manifest.Row]:
    """The rows, or a row for every window of their sounds, where the recipe wants that."""
    if recipe.data.all_windows and "audio" in encoders and math.isfinite(encoders["audio"].max_seconds):
        return split_into_windows(rows, encoders["audio"].max_seconds, recipe.data.hop_seconds)
    return rows


def _build_loader(
    recipe: Recipe,
    rows: Sequence[manifest.Row],
    encoders: Mapping[Modality, Encoder],
    with_parts: bool,
    context: DistributedContext,
    show_progress: bool,
) -> Loader:
    """Batches of the rows that give a trained pair; a pair that no row gives is said."""
    pairs = dict.fromkeys(pair for config in recipe.objectives for pair in config.pairs)
    training, data = recipe.training, recipe.data
    loader = Loader(
        rows,
        encoders,
        pairs,
        training.batch_size,
        training.seed,
        data.workers,
        data.input_cache_mb,
        precomputed=_load_frozen_features(recipe, rows, encoders, context, show_progress),
        with_parts=with_parts,
        weights=data.sampling_weights,
        teacher=compute_teacher_targets(recipe, rows, show_progress, context),
        shard=(context.rank, context.world_size),
        all_reduce_sum=context.all_reduce_sum,
    )
    for a, b in pairs:
        if not any(a in modality_set and b in modality_set for modality_set in loader.modality_sets):
            notify(f"no row has both {a} and {b}: that pair is not trained", show_progress)
    return loader


def compute_teacher_targets(
    recipe: Recipe, rows: Sequence[manifest.Row], show_progress: bool, context: DistributedContext = SINGLE_PROCESS
) -> dict[Source, Tensor]:
    """The teacher's class probabilities for every picture, in half precision; nothing where there is no teacher."""
    if not recipe.data.teacher:
        return {}
    teacher, cache = ENCODERS[recipe.data.teacher](), resolve_cache(recipe.data.cache) or Cache.default()
    sources = [source_of(row, "image") for row in rows if "image" in row.modalities]
    features = compute_or_load(
        teacher.to(context.device),
        sources,
        cache,
        recipe.data.workers,
        "teacher features" if show_progress else None,
        (context.rank, context.world_size),
        context.barrier,
    )
    with torch.inference_mode():
        probabilities = teacher.cpu().class_probabilities(features.pooled[:, 0])
    if probabilities is None:
        raise TrainingError(f"data.teacher: {recipe.data.teacher} was not taught classes")
    return dict(zip(features.index_of, probabilities.half(), strict=True))


def _load_frozen_features(
    recipe: Recipe,
    rows: Sequence[manifest.Row],
    encoders: Mapping[Modality, Encoder],
    context: DistributedContext,
    show_progress: bool,
) -> dict[Modality, CachedFeatures]:
    """What frozen encoders make of all rows, from the cache where it is there."""
    cache = resolve_cache(recipe.data.cache)
    features = {}
    for modality, encoder in encoders.items():
        if cache and encoder.frozen:
            sources = [s for row in rows if modality in row.modalities for s in sources_of(row, modality)]
            title = f"features of {modality}" if show_progress else None
            shard = context.rank, context.world_size
            features[modality] = compute_or_load(
                encoder, sources, cache, recipe.data.workers, title, shard, context.barrier
            )
    return features
