"""Train a space from a recipe and its manifests, and save it in a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from triptych.data.cache import resolve_cache
from triptych.data.loader import sources_of
from triptych.data.tables_in_memory import DataLike
from triptych.devices import choose_execution
from triptych.errors import TrainingError
from triptych.interfaces import Batch
from triptych.progress import ProgressBar, notify, track_progress
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.starter import initialise_heads
from triptych.training.arguments import attach_data, resolve_output, resolve_recipe
from triptych.training.callbacks import Callback, CallbackRunner
from triptych.training.distributed import DistributedContext, check_batch_norm, init_distributed
from triptych.training.early_stopping import EarlyStopping
from triptych.training.environment import describe_environment
from triptych.training.epoch import train_one_epoch
from triptych.training.hold_selection import start_from_ready_space
from triptych.training.loggers import resolve_callbacks
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer
from triptych.training.run_directory import ResumeState, RunDirectory
from triptych.training.step import format_losses
from triptych.training.training_data import TrainingData, build_loader, drop_absent_modalities, load_training_data
from triptych.training.validation import compute_validation_score, has_validation_pairs
from triptych.training.warm_start import adopt_init, keeps_ready_space, raise_epochs


def train(
    recipe: Recipe | str | PathLike[str] | None = None,
    output: str | PathLike[str] | None = None,
    *,
    data: DataLike | None = None,
    init: str | PathLike[str] | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback | str] = (),
    restart: bool = False,
    allow_outside: bool = False,
    show_progress: bool = True,
    device: str | torch.device | None = None,
) -> Space:
    """Train a space and save it in a run folder, or resume an interrupted run: the result is the same.

    Args:
        recipe: The name of a recipe, the path of a TOML file, or a recipe. Not needed with `init`.
        output: The run folder. Default: runs/NAME with the name of the recipe.
        data: Paths of manifests; a table of pandas, polars or Arrow; a Hugging Face dataset, or "hf:NAME"; dictionaries
            with the columns of a manifest; or a dictionary of splits. Default: the manifest of the recipe.
        init: A ready space to start from, such as "starter" or a run; it replaces the table [space] of the recipe.
        epochs: The number of epochs. Default: as in the recipe, also for the next three arguments.
        batch_size: The batch size over all processes.
        learning_rate: The learning rate of heads and objectives.
        seed: The seed of all random choices.
        overrides: Changes of other values of the recipe, such as "space.embed_dim=64".
        callbacks: Callbacks, or names of loggers: "tensorboard", "wandb", "mlflow" or "trackio".
        restart: Whether to replace an existing run in the folder.
        allow_outside: Whether a manifest may list files outside its folder.
        show_progress: Whether to show progress.
        device: "auto" (cuda, else mps, else cpu), "cpu", "cuda", "cuda:1", "mps". Default: $TRIPTYCH_DEVICE or "auto".

    Returns:
        The trained space, on the device; with validation rows, that of the best epoch.

    Raises:
        UsageError: The device is not available, an argument has an unsupported type, or a logger is not installed.
        RecipeError, ManifestError: The recipe or the data is invalid, or their modalities differ.
        CheckpointError: The folder contains a run of another recipe or other data.
        TrainingError: Training cannot start or diverges, or a callback raises an exception.

    Example:
        >>> import triptych
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1)
        >>> rows = [{"image": f"images/{i:06d}.png", "text": f"scene {i}"} for i in range(20)]
        >>> space = triptych.train("trimodal", "runs/mine", data=rows, epochs=1, overrides=["space.embed_dim=64"])
    """
    settings = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    recipe = adopt_init(resolve_recipe(recipe, overrides, init, **settings))
    folder, loggers = resolve_output(output, recipe), resolve_callbacks(callbacks)
    with (
        init_distributed(choose_execution(device).device) as context,
        attach_data(recipe, data, folder, restart, allow_outside, context, show_progress) as recipe,
    ):
        return _train_recipe(recipe, folder, loggers, restart, context, show_progress)


def _train_recipe(
    recipe: Recipe,
    folder: Path,
    callbacks: Sequence[Callback],
    restart: bool,
    context: DistributedContext,
    show_progress: bool,
) -> Space:
    """Load the data, lock the run folder, and train a new run or resume the run in the folder."""
    show_progress = show_progress and context.is_main
    data = load_training_data(recipe, show_progress)
    recipe = raise_epochs(drop_absent_modalities(recipe, data.train, show_progress), data.train)
    if data.valid and not has_validation_pairs(data.valid, recipe):
        reason = f"no row of split {recipe.data.valid_split} has a trained pair"
        notify(f"{reason}: there is no validation, and the last epoch is saved", show_progress)
        data = replace(data, valid=())
    run = RunDirectory(folder, recipe, data, context.is_main)
    with run.lock():
        state = None if restart else run.load_resume_state()
        if state:
            epochs = f"{state.epochs_done} of {recipe.training.epochs} epochs"
            notify(f"{run.folder}: resuming; {epochs} are complete", show_progress)
        runner = CallbackRunner(callbacks if context.is_main else (), context.device, run.record_error)
        return _train(recipe, data, run, state, runner, context, show_progress)


def _train(
    recipe: Recipe,
    data: TrainingData,
    run: RunDirectory,
    state: ResumeState | None,
    runner: CallbackRunner,
    context: DistributedContext,
    show_progress: bool,
) -> Space:
    """Build space, objectives, optimizer and loader. Then train, validate and save epoch by epoch."""
    space, objectives, optimizer = _build_model(recipe, data, run, state, context, show_progress)
    run.check_disk_space(space, objectives, optimizer)
    context.broadcast_parameters([space, objectives])
    check_batch_norm(space.train(), recipe, context)
    if keeps_ready_space(space):
        return _keep_ready_space(recipe, data, run, space, objectives, optimizer, context)
    loader = build_loader(recipe, data.train, space, objectives.reads_parts(space), context, show_progress)

    early_stopping, first_epoch = (state.early_stopping, state.epochs_done) if state else (EarlyStopping(), 0)
    epochs, steps = recipe.training.epochs, loader.steps_per_epoch
    if first_epoch != context.broadcast(first_epoch):
        raise TrainingError(f"{run.folder}: the processes see different folders; give a folder on a shared file system")
    run.start(first_epoch, describe_environment(context.world_size, context.device))
    with (
        runner.run(run.folder, recipe, steps, first_epoch),
        track_progress("training", epochs * steps, show_progress) as progress,
    ):
        progress.advance(first_epoch * steps)
        for epoch in range(first_epoch, epochs):
            if early_stopping.should_stop(recipe.training.patience):
                break
            started = time.monotonic()
            runner.start_epoch(epoch)
            on_step = _make_step_callback(
                progress, f"epoch {epoch + 1}/{epochs}", f"{early_stopping}", context.world_size, runner
            )
            batches = loader.iter_epoch(epoch)
            means = train_one_epoch(space, objectives, optimizer, batches, epoch, steps, context, on_step, run.abort)
            if not means:
                raise TrainingError(loader.describe_empty_epoch())
            if _should_validate(epoch, recipe, data):
                score = compute_validation_score(space, data.valid, recipe) if context.is_main else 0.0
                means["valid"] = context.broadcast(score)
                early_stopping = early_stopping.update(means["valid"])
            else:
                early_stopping = early_stopping.skip()
            skip_reasons = [*data.row_errors, *context.all_gather_strings(loader.failures.values())]
            metrics = {"epoch": epoch + 1, "seconds": round(time.monotonic() - started, 2), **means}
            run.save_epoch(metrics, skip_reasons, space, objectives, optimizer, early_stopping)
            runner.end_epoch(metrics)
            if context.broadcast(bool(runner.stop_reason)):
                notify(f"training is stopped by {runner.stop_reason}", show_progress)
                break
        context.barrier()
        return run.finalize(space)


def _keep_ready_space(
    recipe: Recipe,
    data: TrainingData,
    run: RunDirectory,
    space: Space,
    objectives: ObjectiveSet,
    optimizer: torch.optim.Optimizer,
    context: DistributedContext,
) -> Space:
    """Save the ready space as a complete run, without training."""
    run.start(0, describe_environment(context.world_size, context.device))
    metrics, early_stopping = {"epoch": recipe.training.epochs, "seconds": 0.0}, EarlyStopping().skip()
    if context.is_main and data.valid and recipe.training.eval_every:
        metrics["valid"] = compute_validation_score(space, data.valid, recipe)
        early_stopping = EarlyStopping().update(metrics["valid"])
    run.save_epoch(metrics, data.row_errors, space, objectives, optimizer, early_stopping)
    context.barrier()
    return run.finalize(space)


def _build_model(
    recipe: Recipe,
    data: TrainingData,
    run: RunDirectory,
    state: ResumeState | None,
    context: DistributedContext,
    show_progress: bool,
) -> tuple[Space, ObjectiveSet, torch.optim.Optimizer]:
    """Build space, objectives and optimizer from the recipe's seed, or restore them from the interrupted run."""
    torch.manual_seed(recipe.training.seed)
    space = state.space if state else _build_space(recipe, data, context, show_progress)
    torch.manual_seed(recipe.training.seed)
    objectives = ObjectiveSet(recipe)
    space.to(context.device)
    objectives.to(context.device)
    optimizer = build_optimizer(recipe, space, objectives)
    if state:
        run.restore_state(state, objectives, optimizer)
    return space, objectives, optimizer


def _build_space(recipe: Recipe, data: TrainingData, context: DistributedContext, show_progress: bool) -> Space:
    """Build a space with random heads, or from the ready space `training.init`."""
    if recipe.training.init:
        return start_from_ready_space(recipe, data.train, context, show_progress)
    space = Space(recipe)
    for m in space.modalities:
        sources = (source for row in data.train if m in row.modalities for source in sources_of(row, m))
        space.encoder(m).fit_vocabulary(sources)
    initialise_heads(space, resolve_cache(recipe.data.cache))
    return space


def _should_validate(epoch: int, recipe: Recipe, data: TrainingData) -> bool:
    """Return whether to compute the validation score: after every `eval_every`-th epoch and after the last epoch."""
    training = recipe.training
    is_due = training.eval_every > 0 and ((epoch + 1) % training.eval_every == 0 or epoch + 1 == training.epochs)
    return is_due and bool(data.valid)


def _make_step_callback(
    progress: ProgressBar, title: str, status: str, world_size: int, runner: CallbackRunner
) -> Callable[[dict[str, float], Batch], None]:
    """Return a function that advances the progress bar with the losses and the speed, and calls the callbacks."""
    started, num_pairs = time.monotonic(), 0

    def show_step(values: dict[str, float], batch: Batch) -> None:
        nonlocal num_pairs
        num_pairs += world_size * len(batch.group)
        speed = num_pairs / (time.monotonic() - started)
        progress.advance(1, f"{title} · {format_losses(values)} · {speed:.0f} pairs/s{status}")
        runner.step(values)

    return show_step
