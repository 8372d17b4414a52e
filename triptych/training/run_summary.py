"""The runs below a folder: how each stands, how good it is, how long it took."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.checkpoint import MODEL_CARD_FILE, RECIPE_FILE
from triptych.errors import TriptychError, UsageError
from triptych.recipe import Recipe
from triptych.training.run_directory import ERROR_FILE, METRICS_FILE
from triptych.training.run_lock import is_running

MAX_DEPTH = 4  # folders below the one that is asked about


@dataclass(frozen=True)
class RunSummary:
    """One run at a glance."""

    folder: str
    recipe: str
    state: str  # running, finished or stopped
    stop_reason: str  # it has stopped
    epochs: int
    total_epochs: int
    loss: float | None  # of the last epoch
    valid: float | None  # best mean of R@1, R@5 and R@10 in % on the validation rows
    seconds: float


def list_runs(folder: Path) -> list[RunSummary]:
    """Every run in a folder, or below it, in order of their names."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; `triptych train` makes runs, in runs/ unless told otherwise")
    patterns = ["/".join(["*"] * depth + [METRICS_FILE]) for depth in range(MAX_DEPTH + 1)]
    run_folders = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    return [summary for run in run_folders if (run / RECIPE_FILE).is_file() and (summary := _summarise_run(run))]


def _summarise_run(folder: Path) -> RunSummary | None:
    """One run; None where the folder only looks like one."""
    try:
        recipe = Recipe.load(folder / RECIPE_FILE)
    except TriptychError:
        return None
    lines: list[dict[str, Any]] = []
    for line in (folder / METRICS_FILE).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # somebody may have edited the file
            lines.append(json.loads(line))
    state, stop_reason = _read_state(folder)
    scores = [line["valid"] for line in lines if "valid" in line]
    return RunSummary(
        folder=str(folder),
        recipe=recipe.name,
        state=state,
        stop_reason=stop_reason,
        epochs=len(lines),
        total_epochs=recipe.training.epochs,
        loss=lines[-1].get("loss") if lines else None,
        valid=max(scores) if scores else None,
        seconds=sum(line.get("seconds", 0.0) for line in lines),
    )


def _read_state(folder: Path) -> tuple[str, str]:
    if is_running(folder):
        return "running", ""
    if (folder / ERROR_FILE).is_file():
        with suppress(OSError, ValueError, KeyError):
            return "stopped", json.loads((folder / ERROR_FILE).read_text(encoding="utf-8"))["reason"]
    if (folder / MODEL_CARD_FILE).is_file():
        return "finished", ""
    return "stopped", "interrupted; the same command goes on"
