"""A run folder: the effective recipe, the metrics, the trained space, and the state to resume from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from triptych import checkpoint
from triptych.checkpoint import MODEL_CARD_FILE, RECIPE_FILE
from triptych.data.materialise import has_other_files
from triptych.devices import Execution
from triptych.errors import CheckpointError, TrainingError
from triptych.execution.backends import apply_execution
from triptych.files import find_stale_temp_files, lock_file_names, remove_stale_temp_files, write_text
from triptych.interfaces import Encoder, Modality
from triptych.model_card import render_model_card
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.early_stopping import EarlyStopping
from triptych.training.loggers import LOGGERS_FILE, TENSORBOARD_FOLDER
from triptych.training.metrics_log import METRICS_FILE, MetricsLog, read_lines
from triptych.training.run_lock import LOCK_FILE, check_disk_space, lock_folder
from triptych.training.training_data import TrainingData
from triptych.training.warm_start import keeps_ready_space

LAST_FILE, SKIPPED_FILE = "last.safetensors", "skipped.txt"
ENVIRONMENT_FILE, ERROR_FILE = "environment.json", "error.json"
RUN_FILES = {RECIPE_FILE, METRICS_FILE, LAST_FILE, SKIPPED_FILE, checkpoint.SPACE_FILE}
RUN_FILES |= {ENVIRONMENT_FILE, ERROR_FILE, MODEL_CARD_FILE, LOGGERS_FILE}
DATA_FOLDER = "data"  # the manifest and the media files of Python data
MAX_ROWS_IN_MESSAGE = 8  # rows of a failed batch that the error message lists; error.json lists all rows
OTHER_FILES_BYTES = 2_000_000  # disk space that is reserved for all files except checkpoints


@dataclass(frozen=True)
class ResumeState:
    """The state of a run after some epochs. A resumed run ends with the same weights as an uninterrupted run."""

    epochs_done: int
    space: Space
    objectives_state: dict[str, Tensor]
    optimizer_state: dict[str, Tensor]
    early_stopping: EarlyStopping


class RunDirectory:
    """The folder of one training run. Only the main process writes files; other processes skip writing."""

    def __init__(self, folder: Path, recipe: Recipe, data: TrainingData, is_writer: bool = True) -> None:
        self.folder, self.recipe, self.data, self.is_writer = folder, recipe, data, is_writer

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the folder until the block ends."""
        check_foreign_files(self.folder, self.recipe)
        with lock_folder(self.folder) if self.is_writer else nullcontext():
            yield

    def load_resume_state(self) -> ResumeState | None:
        """Load the state of an interrupted run of the same recipe and data, or return None. No file is changed."""
        check_foreign_files(self.folder, self.recipe)
        state_file, recipe_file = self.folder / LAST_FILE, self.folder / RECIPE_FILE
        if not state_file.exists():
            existing = sorted(name for name in RUN_FILES if (self.folder / name).exists())
            if existing and not (recipe_file.is_file() and recipe_file.read_bytes() == self.recipe.to_toml().encode()):
                problem = f"{self.folder}: contains {existing[0]} of another run"
                raise TrainingError(f"{problem}; give another folder, or --restart")
            return None
        space, extra_tensors, header = checkpoint.load_with_extras(state_file)
        is_same_recipe = _weight_relevant_recipe(space.recipe) == _weight_relevant_recipe(self.recipe)
        if not is_same_recipe or header.get("data_hash") != self.data.data_hash:
            problem = f"{self.folder}: contains a run of {'other data' if is_same_recipe else 'another recipe'}"
            raise CheckpointError(f"{problem}; give another folder, or --restart to replace that run")
        space.recipe = self.recipe
        objectives_state, optimizer_state = (
            {name.removeprefix(prefix): t for name, t in extra_tensors.items() if name.startswith(prefix)}
            for prefix in ("objectives.", "optimizer.")
        )
        try:
            epochs_done, (best, last, num_bad_evals) = int(header["epochs"]), json.loads(header["early_stopping"])
            early_stopping = EarlyStopping(float(best), float(last), int(num_bad_evals))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{state_file}: is inconsistent; use --restart") from error
        needs_optimizer = not keeps_ready_space(space)
        if not 1 <= epochs_done <= self.recipe.training.epochs or (needs_optimizer and not optimizer_state):
            raise CheckpointError(f"{state_file}: is inconsistent; use --restart")
        return ResumeState(epochs_done, space, objectives_state, optimizer_state, early_stopping)

    def restore_state(self, state: ResumeState, objectives: nn.Module, optimizer: Optimizer) -> None:
        """Restore objectives and optimizer, and save the space if its file is missing."""
        try:
            objectives.load_state_dict(state.objectives_state)
            load_optimizer_state(optimizer, state.optimizer_state)
        except (KeyError, ValueError, RuntimeError) as error:
            problem = f"{self.folder}: {LAST_FILE} does not fit the recipe ({error})"
            raise CheckpointError(f"{problem}; use --restart") from error
        if self.is_writer and not (self.folder / checkpoint.SPACE_FILE).is_file():
            checkpoint.save(state.space, self.folder / checkpoint.SPACE_FILE)

    def check_disk_space(self, space: Space, objectives: nn.Module, optimizer: Optimizer) -> None:
        """Raise a TrainingError if the folder is not writable or the disk lacks space for the checkpoints."""
        if not self.is_writer:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        copies = 2 if isinstance(optimizer, AdamW) else 1  # tensors of optimizer state per parameter
        weight_bytes = _count_bytes(space.state_dict_without_frozen().values())
        state_bytes = weight_bytes + _count_bytes(objectives.state_dict().values()) + copies * _count_bytes(parameters)
        # A new state file is complete before it replaces the old file, so both need disk space.
        existing = [self.folder / name for name in (checkpoint.SPACE_FILE, LAST_FILE)]
        existing_bytes = sum(file.stat().st_size for file in existing if file.is_file())
        new_bytes = max(0, weight_bytes + 2 * state_bytes - existing_bytes)
        check_disk_space(self.folder / LAST_FILE, OTHER_FILES_BYTES + new_bytes)

    def start(self, epochs_done: int, environment: Mapping[str, Any]) -> None:
        """Prepare the folder to continue after `epochs_done` epochs."""
        if not self.is_writer:
            return
        check_foreign_files(self.folder, self.recipe)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_stale_temp_files(self.folder, RUN_FILES)
            for name in RUN_FILES - {RECIPE_FILE} if epochs_done == 0 else [ERROR_FILE]:
                (self.folder / name).unlink(missing_ok=True)
            if epochs_done == 0:
                shutil.rmtree(self.folder / TENSORBOARD_FOLDER, ignore_errors=True)
            write_text(self.folder / RECIPE_FILE, self.recipe.to_toml())
            if epochs_done < self.recipe.training.epochs:  # a complete run keeps the environment of its training
                data_summary = {"data": self.data.manifest_hashes, "rows": len(self.data.train)}
                write_text(self.folder / ENVIRONMENT_FILE, json.dumps({**environment, **data_summary}, indent=2) + "\n")
            self._metrics_log = MetricsLog(self.folder, epochs_done)
        except OSError as error:
            raise TrainingError(f"{self.folder}: cannot be written ({error}); give another folder") from error

    def save_epoch(
        self,
        metrics: Mapping[str, Any],
        skip_reasons: Iterable[str],
        space: Space,
        objectives: nn.Module,
        optimizer: Optimizer,
        early_stopping: EarlyStopping,
    ) -> None:
        """Save the skipped rows and the metrics of an epoch, and the state to resume from."""
        if self.is_writer:
            self.log_skipped(skip_reasons)
            # Log before saving: a surplus line is dropped on resume, but a missing line could not be restored.
            self.log_metrics(metrics)
            self.save_checkpoints(metrics["epoch"], space, objectives, optimizer, early_stopping)

    def save_checkpoints(
        self, epochs_done: int, space: Space, objectives: nn.Module, optimizer: Optimizer, stopping: EarlyStopping
    ) -> None:
        """Save the space if its score is the best, then the resume state. A run killed in between repeats the epoch."""
        extra_tensors = {f"objectives.{name}": value for name, value in objectives.state_dict().items()}
        for i, state in optimizer.state_dict()["state"].items():
            extra_tensors |= {f"optimizer.{i}.{key}": value for key, value in state.items()}
        space.history = {"data": self.data.manifest_hashes, "rows": len(self.data.train), "epochs": epochs_done}
        if stopping.was_evaluated:
            space.history["valid"] = round(stopping.last, 4)
        if stopping.is_best:
            checkpoint.save(space, self.folder / checkpoint.SPACE_FILE)
        metadata = {"epochs": str(epochs_done), "data_hash": self.data.data_hash}
        metadata["early_stopping"] = json.dumps(astuple(stopping)[:3])
        checkpoint.save(space, self.folder / LAST_FILE, extra_tensors, metadata)

    def abort(self, reason: str, rows: Iterable[str]) -> TrainingError:
        """Write error.json with the reason and the rows of the failed batch; return the error to raise."""
        rows = list(rows)
        self.record_error(reason, rows)
        listed = ", ".join(rows[:MAX_ROWS_IN_MESSAGE])
        if len(rows) > MAX_ROWS_IN_MESSAGE:
            listed += f" … ({len(rows)} rows; {self.folder / ERROR_FILE} lists all)"
        return TrainingError(
            f"{reason}, in the batch of rows {listed}; the last completed epoch is saved. If the loss diverged, try a "
            "smaller training.learning_rate"
        )

    def record_error(self, reason: str, rows: Sequence[str] = ()) -> None:
        """Write error.json with the reason why training stopped."""
        if self.is_writer:
            error_record = {"reason": reason, "rows": list(rows)}
            write_text(self.folder / ERROR_FILE, json.dumps(error_record, indent=2, ensure_ascii=False) + "\n")

    def finalize(self, last_space: Space) -> Space:
        """Return the space with the best validation score, else the last space, and write its model card."""
        path = self.folder / checkpoint.SPACE_FILE
        space = checkpoint.load_with_extras(path)[0] if path.is_file() else last_space.eval()
        apply_execution(space, Execution(device=str(last_space.device)))
        if self.is_writer:
            encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
            write_text(self.folder / MODEL_CARD_FILE, render_model_card(self.recipe, encoders, space.history))
        return space

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        self._metrics_log.append(metrics)

    def log_skipped(self, reasons: Iterable[str]) -> None:
        """Write one line per skipped row or file to skipped.txt."""
        lines = {*read_skipped(self.folder), *(" ".join(reason.split()) for reason in reasons)}
        if lines:
            write_text(self.folder / SKIPPED_FILE, "".join(f"{line}\n" for line in sorted(lines)))


def check_foreign_files(folder: Path, recipe: Recipe | None = None) -> None:
    """Raise a TrainingError if a folder contains files that are not from a training run.

    A recipe.toml alone may be from a run of `recipe` that was stopped before its first epoch, or from the user. Without
    `recipe`, it is not checked.
    """
    if not folder.is_dir():
        return
    names = {p.name for p in folder.iterdir()}
    # A README.md or a recipe.toml alone may be the user's own.
    run_files = RUN_FILES if RECIPE_FILE in names and names & {ENVIRONMENT_FILE, METRICS_FILE, LAST_FILE} else set()
    run_files = run_files | {TENSORBOARD_FOLDER} | lock_file_names(LOCK_FILE)
    if not has_other_files(folder / DATA_FOLDER):
        run_files |= {DATA_FOLDER}
    foreign = names - run_files - find_stale_temp_files(folder, RUN_FILES)
    if RECIPE_FILE in foreign and (recipe is None or (folder / RECIPE_FILE).read_bytes() == recipe.to_toml().encode()):
        foreign.remove(RECIPE_FILE)
    if foreign:
        problem = f"{folder}: contains other files ({min(foreign)} …)"
        raise TrainingError(f"{problem}; give an empty or new folder for the run")


def read_skipped(folder: Path) -> list[str]:
    """Read the lines of skipped.txt: skipped rows and files, with reasons."""
    return read_lines(folder / SKIPPED_FILE)


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def load_optimizer_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the optimizer state that `RunDirectory.save_checkpoints` wrote."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    shapes = dict(enumerate(p.shape for group in optimizer.param_groups for p in group["params"]))
    if any(t.dim() and t.shape != shapes[i] for i, tensors_of_i in state.items() for t in tensors_of_i.values()):
        raise ValueError("the optimizer state does not fit the parameters")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _weight_relevant_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe without settings that do not affect the weights: names, paths, file-reading options."""
    data = replace(recipe.data, manifest="", allow_outside=False, workers=1, input_cache_mb=0, cache="")
    return replace(recipe, name="", description="", data=data)
