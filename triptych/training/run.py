"""A run folder: the effective recipe, the metrics, the space, and what is needed to go on after an interruption."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triptych import checkpoint
from triptych.card import CARD_FILE, RECIPE_FILE, model_card
from triptych.contracts import Encoder, Modality
from triptych.errors import CheckpointError, TrainingError
from triptych.files import lock_names, remains, sweep, write_text
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.claim import LOCK, check_room, claimed
from triptych.training.events import FOLDER as EVENTS_FOLDER
from triptych.training.events import Events
from triptych.training.rows import Rows
from triptych.training.validation import Standing

METRICS_FILE, LAST_FILE, LEFT_OUT_FILE = "metrics.jsonl", "last.safetensors", "left_out.txt"
ENVIRONMENT_FILE, STOPPED_FILE = "environment.json", "stopped.json"
OWN_FILES = {RECIPE_FILE, METRICS_FILE, LAST_FILE, LEFT_OUT_FILE, checkpoint.SPACE_FILE}
OWN_FILES |= {ENVIRONMENT_FILE, STOPPED_FILE, CARD_FILE}
NAMED = 8  # rows of a bad batch that the message names; the file has them all
SMALL = 2_000_000  # bytes for everything but checkpoints


@dataclass(frozen=True)
class Progress:
    """Where a run stands after so many epochs: enough to continue it to the same weights."""

    epochs: int
    space: Space
    objectives: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    standing: Standing


class Run:
    """One folder, one training run. Of several processes only one writes: the others' calls do nothing."""

    def __init__(self, folder: Path, recipe: Recipe, data: Rows, writes: bool = True) -> None:
        self.folder, self.recipe, self.data, self.writes = folder, recipe, data, writes

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other trainings out of the folder until the block ends."""
        self._refuse_strangers()
        if not self.writes:
            yield
            return
        with claimed(self.folder):
            yield

    def reached(self) -> Progress | None:
        """What an earlier, interrupted run of the same recipe on the same data has reached. Changes nothing."""
        self._refuse_strangers()
        last, recipe = self.folder / LAST_FILE, self.folder / RECIPE_FILE
        if not last.exists():
            there = sorted(name for name in OWN_FILES if (self.folder / name).exists())
            if there and not (recipe.is_file() and recipe.read_bytes() == self.recipe.text().encode()):
                raise TrainingError(
                    f"{self.folder}: holds {there[0]} of something else; give another folder, or --restart"
                )
            return None
        space, extra, header = checkpoint.load_all(last)
        same = _identity(space.recipe) == _identity(self.recipe)
        if not same or header.get("data") != self.data.hash:
            raise CheckpointError(
                f"{self.folder}: holds a run of {'other data' if same else 'another recipe'}; "
                "give another folder, or --restart to replace that run"
            )
        space.recipe = self.recipe
        sort = {kind: {n.removeprefix(kind): t for n, t in extra.items() if n.startswith(kind)} for kind in _KINDS}
        epochs = str(header.get("epochs"))
        if not epochs.isdecimal() or not 1 <= int(epochs) <= self.recipe.training.epochs or not sort["optimizer."]:
            raise CheckpointError(f"{last}: its parts do not fit together; use --restart")
        return Progress(int(epochs), space, sort["objectives."], sort["optimizer."], _standing(last, header))

    def restore(self, reached: Progress, objectives: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put objectives and optimizer back to where they were, and the space's file, should it be gone."""
        try:
            objectives.load_state_dict(reached.objectives)
            restore_optimizer(optimizer, reached.optimizer)
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.folder}: its parts do not fit together ({error}); use --restart") from error
        if self.writes and not (self.folder / checkpoint.SPACE_FILE).is_file():
            checkpoint.save(reached.space, self.folder / checkpoint.SPACE_FILE)

    def check_room(self, space: Space, objectives: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """See that the folder can be written to and has room for what the run will keep."""
        if not self.writes:
            return
        learning = [p for group in optimizer.param_groups for p in group["params"]]
        moments = 2 if isinstance(optimizer, torch.optim.AdamW) else 1
        weights = _bytes(space.own_weights().values())
        last = weights + _bytes(objectives.state_dict().values()) + moments * _bytes(learning)
        # The old state stays until the new one is whole.
        there = [self.folder / name for name in (checkpoint.SPACE_FILE, LAST_FILE)]
        kept = sum(file.stat().st_size for file in there if file.is_file())
        check_room(self.folder / LAST_FILE, SMALL + max(0, weights + 2 * last - kept))

    def start(self, epochs: int, environment: Mapping[str, Any]) -> None:
        """Make the folder ready to go on after so many epochs."""
        if not self.writes:
            return
        self._refuse_strangers()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder, OWN_FILES)
            for name in OWN_FILES - {RECIPE_FILE} if epochs == 0 else [STOPPED_FILE]:
                (self.folder / name).unlink(missing_ok=True)
            write_text(self.folder / RECIPE_FILE, self.recipe.text())
            if epochs < self.recipe.training.epochs:  # else nothing will be trained here and now
                manifests = {"data": self.data.digests, "rows": len(self.data.train)}
                write_text(self.folder / ENVIRONMENT_FILE, json.dumps({**environment, **manifests}, indent=2) + "\n")
            # A line that was logged but not saved is forgotten: its epoch will be trained again.
            metrics = self.folder / METRICS_FILE
            lines = _lines(metrics)[:epochs]
            write_text(metrics, "".join(f"{line}\n" for line in lines))
            self._events = Events(self.folder, lines)
        except OSError as error:
            raise TrainingError(f"{self.folder}: cannot be written to ({error}); give another folder") from error

    def keep(
        self,
        metrics: Mapping[str, Any],
        left_out: Iterable[str],
        space: Space,
        objectives: nn.Module,
        optimizer: torch.optim.Optimizer,
        standing: Standing,
    ) -> None:
        """One more epoch is done: what could not be used, its metrics, and everything needed to go on from it."""
        if self.writes:
            self.leave_out(left_out)
            # Logged before it is saved: a line too many is dropped on resume, a line too few would be lost.
            self.log(metrics)
            self.save(metrics["epoch"], space, objectives, optimizer, standing)

    def save(
        self, epochs: int, space: Space, objectives: nn.Module, optimizer: torch.optim.Optimizer, standing: Standing
    ) -> None:
        """The space for use, then the state after so many epochs: killed between the two, the epoch is done again."""
        extra = {f"objectives.{name}": value for name, value in objectives.state_dict().items()}
        for i, state in optimizer.state_dict()["state"].items():
            extra |= {f"optimizer.{i}.{key}": value for key, value in state.items()}
        space.history = {"data": self.data.digests, "rows": len(self.data.train), "epochs": epochs}
        if standing.looked:
            space.history["valid"] = round(standing.last, 4)
        if standing.is_best:
            checkpoint.save(space, self.folder / checkpoint.SPACE_FILE)
        notes = {"epochs": str(epochs), "data": self.data.hash, "standing": json.dumps(astuple(standing)[:3])}
        checkpoint.save(space, self.folder / LAST_FILE, extra, notes)

    def stop(self, reason: str, rows: Iterable[str]) -> TrainingError:
        """Write down why training cannot go on, and in which rows' batch; the error that says so."""
        rows = list(rows)
        if self.writes:
            note = {"reason": reason, "rows": rows}
            write_text(self.folder / STOPPED_FILE, json.dumps(note, indent=2, ensure_ascii=False) + "\n")
        more = f" … ({len(rows)} rows; {self.folder / STOPPED_FILE} has all)" if len(rows) > NAMED else ""
        return TrainingError(
            f"{reason}, in the batch of rows {', '.join(rows[:NAMED])}{more}; the last good epoch is kept. "
            "If numbers grew out of bounds, try a smaller training.learning_rate"
        )

    def finish(self, last: Space) -> Space:
        """The space to use, which is that of the best look at the validation rows, or the last; and its model card."""
        path = self.folder / checkpoint.SPACE_FILE
        space = checkpoint.load(path) if path.is_file() else last.eval()
        if self.writes:
            encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
            write_text(self.folder / CARD_FILE, model_card(self.recipe, encoders, space.history))
        return space

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        line = json.dumps({**metrics, "time": round(time.time(), 1)})
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._events.add(line)

    def leave_out(self, reasons: Iterable[str]) -> None:
        """Write down what training could not use, a line each, beside what was written before."""
        lines = {*left_out(self.folder), *(" ".join(reason.split()) for reason in reasons)}
        if lines:
            write_text(self.folder / LEFT_OUT_FILE, "".join(f"{line}\n" for line in sorted(lines)))

    def _refuse_strangers(self) -> None:
        if not self.folder.is_dir():
            return
        there = {p.name for p in self.folder.iterdir()}
        # A README.md or a recipe.toml alone is somebody's own.
        ours = OWN_FILES if RECIPE_FILE in there and there & {ENVIRONMENT_FILE, METRICS_FILE, LAST_FILE} else set()
        strangers = there - ours - {EVENTS_FOLDER} - lock_names(LOCK) - remains(self.folder, OWN_FILES)
        if RECIPE_FILE in strangers and (self.folder / RECIPE_FILE).read_bytes() == self.recipe.text().encode():
            strangers.remove(RECIPE_FILE)  # a run that was stopped as soon as it began
        if strangers:
            raise TrainingError(
                f"{self.folder}: holds other things ({min(strangers)} …); give an empty or new folder for the run"
            )


def _standing(last: Path, header: Mapping[str, Any]) -> Standing:
    try:
        best, recent, since = json.loads(header["standing"])
        return Standing(float(best), float(recent), int(since))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{last}: its parts do not fit together; use --restart") from error


_KINDS = ("objectives.", "optimizer.")


def left_out(folder: Path) -> list[str]:
    """What a run could not use, and why."""
    return _lines(folder / LEFT_OUT_FILE)


def steps_taken(folder: Path) -> int:
    """How many optimizer steps a run has behind it."""
    total = 0
    for line in _lines(folder / METRICS_FILE):
        with suppress(ValueError, TypeError, KeyError):  # somebody may have edited the file
            total += int(json.loads(line)["steps"])
    return total


def is_improving(folder: Path) -> bool:
    """Whether a run might get better with more epochs: its last validation score is its best, or it has none."""
    scores: list[float] = []
    for line in _lines(folder / METRICS_FILE):
        with suppress(ValueError, TypeError, KeyError):  # as above
            scores.append(float(json.loads(line)["valid"]))
    return not scores or scores[-1] == max(scores)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back the moments that `Run.save` wrote."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    empty = optimizer.state_dict()
    places = {i: p.shape for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    for i, moments in state.items():
        if any(moment.dim() and moment.shape != places[i] for moment in moments.values()):
            raise ValueError("the optimizer's moments do not fit the parameters")
    optimizer.load_state_dict({"state": state, "param_groups": empty["param_groups"]})


def _identity(recipe: Recipe) -> Recipe:
    """The part of a recipe that decides the weights; where the files lie and how they are read does not."""
    data = replace(recipe.data, manifest="", allow_outside=False, workers=1, memory_mb=0, cache="")
    return replace(recipe, name="", about="", data=data)
