"""Summaries of all run folders under a folder: state, score and duration."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triptych.checkpoint import MODEL_CARD_FILE, RECIPE_FILE
from triptych.errors import RecipeError, UsageError
from triptych.recipe import TrainingConfig, check_recipe_name
from triptych.settings import read_dataclass
from triptych.training.metrics_log import METRICS_FILE, read_metrics
from triptych.training.run_directory import ERROR_FILE
from triptych.training.run_lock import is_running

MAX_DEPTH = 4  # levels of subfolders that are searched for run folders


@dataclass(frozen=True)
class RunSummary:
    """The summary of one run."""

    folder: str
    recipe: str
    state: str  # running, finished or stopped
    stop_reason: str  # empty unless the state is "stopped"
    epochs: int
    total_epochs: int
    loss: float | None  # mean loss of the last epoch
    valid: float | None  # best mean of R@1, R@5 and R@10 in % on the validation rows
    seconds: float


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarise all run folders in a folder and its subfolders, sorted by path."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; `triptych train` writes its runs to runs/ by default")
    patterns = ["*/" * depth + METRICS_FILE for depth in range(MAX_DEPTH + 1)]
    run_folders = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    return [summary for run in run_folders if (run / RECIPE_FILE).is_file() and (summary := _summarise_run(run))]


def _summarise_run(folder: Path) -> RunSummary | None:
    """Summarise one run; return None if the folder has no valid recipe. Plug-ins are not imported."""
    try:
        table = tomllib.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
        name, training = table["name"], read_dataclass(TrainingConfig, table["training"], "training")
        check_recipe_name(name)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, RecipeError):  # TOMLDecodeError is a ValueError
        return None
    epochs = read_metrics(folder)
    state, stop_reason = _read_state(folder)
    return RunSummary(
        folder=str(folder),
        recipe=name,
        state=state,
        stop_reason=stop_reason,
        epochs=len(epochs),
        total_epochs=training.epochs,
        loss=epochs[-1].get("loss") if epochs else None,
        valid=max((metrics["valid"] for metrics in epochs if "valid" in metrics), default=None),
        seconds=sum(metrics.get("seconds", 0.0) for metrics in epochs),
    )


def _read_state(folder: Path) -> tuple[str, str]:
    if is_running(folder):
        return "running", ""
    if (folder / ERROR_FILE).is_file():
        with suppress(OSError, ValueError, KeyError):
            return "stopped", json.loads((folder / ERROR_FILE).read_text(encoding="utf-8"))["reason"]
    if (folder / MODEL_CARD_FILE).is_file():
        return "finished", ""
    return "stopped", "interrupted; run the same command to resume"
