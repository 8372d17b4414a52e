"""The metrics of a run: metrics.jsonl with one line per epoch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from triptych.files import write_text

METRICS_FILE = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read the finite numbers that a run has logged, epoch by epoch. Lines that are not JSON are ignored."""
    return [metrics for line in read_lines(folder / METRICS_FILE) if (metrics := _parse_line(line)) is not None]


def count_steps(folder: Path) -> int:
    """Count the optimizer steps of a run."""
    return sum(int(metrics.get("steps", 0)) for metrics in read_metrics(folder))


def is_improving(folder: Path) -> bool:
    """Return whether more epochs may help: the last validation score of a run is the best, or there is no score."""
    scores = [metrics["valid"] for metrics in read_metrics(folder) if "valid" in metrics]
    return not scores or scores[-1] == max(scores)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file; return an empty list if the file does not exist."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


class MetricsLog:
    """The metrics of one run."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        self.path = folder / METRICS_FILE
        # An epoch that was logged but not saved is trained again, so its line is dropped.
        write_text(self.path, "".join(f"{line}\n" for line in read_lines(self.path)[:epochs_done]))

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of one epoch."""
        line = json.dumps({**metrics, "time": round(time.time(), 1)})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _parse_line(line: str) -> dict[str, float] | None:
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return {k: v for k, v in record.items() if isinstance(v, int | float) and math.isfinite(v)}
    return None
