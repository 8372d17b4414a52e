"""The runs below a folder: how each stands, how good it is, how long it took."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.card import CARD_FILE, RECIPE_FILE
from triptych.errors import TriptychError, UsageError
from triptych.recipe import Recipe
from triptych.training.claim import is_claimed
from triptych.training.run import METRICS_FILE, STOPPED_FILE

DEEPEST = 4  # folders below the one that is asked about


@dataclass(frozen=True)
class Summary:
    """One run at a glance."""

    folder: str
    recipe: str
    state: str  # running, finished or stopped
    why: str  # it has stopped
    epochs: int
    of: int
    loss: float | None  # of the last epoch
    valid: float | None  # best mean of R@1, R@5 and R@10 in % on the validation rows
    seconds: float


def summaries(folder: Path) -> list[Summary]:
    """Every run in a folder, or below it, in order of their names."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; `triptych train` makes runs, in runs/ unless told otherwise")
    patterns = ["/".join(["*"] * depth + [METRICS_FILE]) for depth in range(DEEPEST + 1)]
    found = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    return [summary for run in found if (run / RECIPE_FILE).is_file() and (summary := _summary(run))]


def _summary(folder: Path) -> Summary | None:
    """One run; None where the folder only looks like one."""
    try:
        recipe = Recipe.load(folder / RECIPE_FILE)
    except TriptychError:
        return None
    lines: list[dict[str, Any]] = []
    for line in (folder / METRICS_FILE).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # somebody may have edited the file
            lines.append(json.loads(line))
    state, why = _state(folder)
    looks = [line["valid"] for line in lines if "valid" in line]
    return Summary(
        folder=str(folder),
        recipe=recipe.name,
        state=state,
        why=why,
        epochs=len(lines),
        of=recipe.training.epochs,
        loss=lines[-1].get("loss") if lines else None,
        valid=max(looks) if looks else None,
        seconds=sum(line.get("seconds", 0.0) for line in lines),
    )


def _state(folder: Path) -> tuple[str, str]:
    if is_claimed(folder):
        return "running", ""
    if (folder / STOPPED_FILE).is_file():
        with suppress(OSError, ValueError, KeyError):
            return "stopped", json.loads((folder / STOPPED_FILE).read_text(encoding="utf-8"))["reason"]
    if (folder / CARD_FILE).is_file():
        return "finished", ""
    return "stopped", "interrupted; the same command goes on"
