"""A run folder: the effective recipe, the metrics, the space, and what is needed to go on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triptych import checkpoint
from triptych.errors import CheckpointError, TrainingError
from triptych.recipe import Recipe
from triptych.space import Space

RECIPE_FILE, METRICS_FILE, LAST_FILE, LEFT_OUT_FILE = "recipe.toml", "metrics.jsonl", "last.safetensors", "left_out.txt"
OWN_FILES = {RECIPE_FILE, METRICS_FILE, LAST_FILE, LEFT_OUT_FILE, checkpoint.SPACE_FILE}


@dataclass(frozen=True)
class Progress:
    """Where a run stands after so many epochs: enough to continue it to the same weights."""

    epochs: int
    space: Space
    objectives: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class Run:
    """One folder, one training run."""

    def __init__(self, folder: Path, recipe: Recipe, data_hash: str) -> None:
        self.folder, self.recipe, self.data_hash = folder, recipe, data_hash

    def reached(self) -> Progress | None:
        """What an earlier, interrupted run of the same recipe on the same data has reached. Changes nothing."""
        self._refuse_strangers()
        last = self.folder / LAST_FILE
        if not last.exists():
            return None
        space, extra, header = checkpoint.load_all(last)
        same = _identity(space.recipe) == _identity(self.recipe)
        if not same or header.get("data") != self.data_hash:
            raise CheckpointError(
                f"{self.folder}: holds a run of {'other data' if same else 'another recipe'}; "
                "give another folder, or --restart to replace that run"
            )
        space.recipe = self.recipe
        sort = {kind: {n.removeprefix(kind): t for n, t in extra.items() if n.startswith(kind)} for kind in _KINDS}
        return Progress(int(header["epochs"]), space, sort["objectives."], sort["optimizer."])

    def start(self, epochs: int) -> None:
        """Make the folder ready to go on after so many epochs; an unwritable one fails here, not after an hour."""
        self._refuse_strangers()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.sweep(self.folder)
            if epochs == 0:
                for name in OWN_FILES:
                    (self.folder / name).unlink(missing_ok=True)
            checkpoint.write_text(self.folder / RECIPE_FILE, self.recipe.text())
            # A line that was logged but not saved is forgotten: its epoch will be trained again.
            metrics = self.folder / METRICS_FILE
            lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
            checkpoint.write_text(metrics, "".join(f"{line}\n" for line in lines[:epochs]))
        except OSError as error:
            raise TrainingError(f"{self.folder}: cannot be written to ({error}); give another folder") from error

    def save(self, epochs: int, space: Space, objectives: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The space for use, then the state after so many epochs: killed between the two, the epoch is done again."""
        extra = {f"objectives.{name}": value for name, value in objectives.state_dict().items()}
        for i, state in optimizer.state_dict()["state"].items():
            extra |= {f"optimizer.{i}.{key}": value for key, value in state.items()}
        checkpoint.save(space, self.folder / checkpoint.SPACE_FILE)
        checkpoint.save(space, self.folder / LAST_FILE, extra, {"epochs": str(epochs), "data": self.data_hash})

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def leave_out(self, reasons: Iterable[str]) -> None:
        """Write down what training could not use, a line each, beside what was written before."""
        lines = {*left_out(self.folder), *(" ".join(reason.split()) for reason in reasons)}
        if lines:
            checkpoint.write_text(self.folder / LEFT_OUT_FILE, "".join(f"{line}\n" for line in sorted(lines)))

    def _refuse_strangers(self) -> None:
        if not self.folder.is_dir():
            return
        strangers = {p.name for p in self.folder.iterdir()} - OWN_FILES - checkpoint.remains(self.folder)
        if strangers:
            raise TrainingError(
                f"{self.folder}: holds other things ({min(strangers)} …); give an empty or new folder for the run"
            )


_KINDS = ("objectives.", "optimizer.")


def left_out(folder: Path) -> list[str]:
    """What a run could not use, and why."""
    path = folder / LEFT_OUT_FILE
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def steps_taken(folder: Path) -> int:
    """How many optimizer steps a run has behind it."""
    lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["steps"] for line in lines)


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back the moments that `Run.save` wrote."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _identity(recipe: Recipe) -> Recipe:
    """The part of a recipe that decides the weights; where the files lie and how they are read does not."""
    data = replace(recipe.data, manifest="", allow_outside=False, workers=1, memory_mb=0)
    return replace(recipe, name="", about="", data=data)
