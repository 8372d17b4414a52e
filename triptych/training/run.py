"""A run folder: the effective recipe, the metrics, the space, and what is needed to go on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triptych import checkpoint
from triptych.errors import CheckpointError, TrainingError
from triptych.recipe import Recipe
from triptych.space import Space

RECIPE_FILE, METRICS_FILE, LAST_FILE = "recipe.toml", "metrics.jsonl", "last.safetensors"
LEFT_OUT_FILE = "left_out.txt"


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

    def start(self, restart: bool) -> Progress | None:
        """Claim the folder; what an earlier, interrupted run of the same recipe on the same data has reached."""
        last = self.folder / LAST_FILE
        if restart:
            for name in (LAST_FILE, METRICS_FILE, RECIPE_FILE, LEFT_OUT_FILE, checkpoint.SPACE_FILE):
                (self.folder / name).unlink(missing_ok=True)
        if self.folder.exists() and not last.exists():
            strangers = {p.name for p in self.folder.iterdir()} - {RECIPE_FILE, METRICS_FILE, LEFT_OUT_FILE}
            if strangers:
                raise TrainingError(
                    f"{self.folder}: holds other things ({sorted(strangers)[0]} …); give an empty or new folder"
                )
        reached = self._reached(last) if last.exists() else None
        try:
            with checkpoint.replacing(self.folder / RECIPE_FILE) as temporary:
                temporary.write_text(self.recipe.text(), encoding="utf-8")
        except OSError as error:
            raise TrainingError(f"{self.folder}: cannot be written to ({error}); give another folder") from error
        self._keep_metrics(reached.epochs if reached else 0)
        return reached

    def save(self, epochs: int, space: Space, objectives: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The state after so many epochs, as one file that is replaced whole; then the space alone, for use."""
        extra = {f"objectives.{name}": value for name, value in objectives.state_dict().items()}
        for i, state in optimizer.state_dict()["state"].items():
            extra |= {f"optimizer.{i}.{key}": value for key, value in state.items()}
        notes = {"epochs": str(epochs), "data": self.data_hash}
        checkpoint.save(space, self.folder / LAST_FILE, extra, notes)
        checkpoint.save(space, self.folder / checkpoint.SPACE_FILE)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One more line of metrics."""
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def leave_out(self, reasons: Iterable[str]) -> None:
        """Write down what training could not use, a line each."""
        lines = [" ".join(reason.split()) for reason in reasons]
        if lines:
            with checkpoint.replacing(self.folder / LEFT_OUT_FILE) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _reached(self, last: Path) -> Progress:
        space, extra, header = checkpoint.load_all(last)
        if space.recipe != self.recipe or header.get("data") != self.data_hash:
            what = "another recipe" if space.recipe != self.recipe else "other data"
            raise CheckpointError(
                f"{self.folder}: holds a run of {what}; give another folder, or --restart to replace that run"
            )
        sort = {kind: {n.removeprefix(kind): t for n, t in extra.items() if n.startswith(kind)} for kind in _KINDS}
        return Progress(int(header["epochs"]), space, sort["objectives."], sort["optimizer."])

    def _keep_metrics(self, epochs: int) -> None:
        """Forget the lines of epochs that were not saved: they will be trained again."""
        path = self.folder / METRICS_FILE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        with checkpoint.replacing(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines[:epochs]), encoding="utf-8")


_KINDS = ("objectives.", "optimizer.")


def left_out(folder: Path) -> list[str]:
    """What a run could not use, and why."""
    path = folder / LEFT_OUT_FILE
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back the moments that `Run.save` wrote."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
