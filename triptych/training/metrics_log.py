"""The metrics of a run: metrics.jsonl with one line per epoch, and TensorBoard events if TensorBoard is installed."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from triptych.files import write_text

METRICS_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "tensorboard"
# TensorBoard reads files with "tfevents" in their name. The name has no host name, unlike with TensorBoard's writer.
EVENTS_FILE = "events.out.tfevents.0.triptych"


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
    """The metrics of one run. TensorBoard events are rewritten from metrics.jsonl, so that both files agree."""

    def __init__(self, folder: Path, epochs_done: int) -> None:
        self.path = folder / METRICS_FILE
        self.events_path = folder / TENSORBOARD_FOLDER / EVENTS_FILE if find_spec("tensorboard") else None
        # An epoch that was logged but not saved is trained again, so its line is dropped.
        lines = read_lines(self.path)[:epochs_done]
        write_text(self.path, "".join(f"{line}\n" for line in lines))
        shutil.rmtree(folder / TENSORBOARD_FOLDER, ignore_errors=True)
        for line in lines:
            self._add_event(line)

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of one epoch."""
        line = json.dumps({**metrics, "time": round(time.time(), 1)})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._add_event(line)

    def _add_event(self, line: str) -> None:
        metrics = _parse_line(line) or {}
        if self.events_path is None or "epoch" not in metrics:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        step, wall_time = int(metrics.pop("epoch")), metrics.pop("time", 0.0)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        is_new = not self.events_path.exists()
        self.events_path.parent.mkdir(exist_ok=True)
        with self.events_path.open("ab") as file:
            writer = RecordWriter(file)
            if is_new:
                writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
            writer.write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)).SerializeToString())


def _parse_line(line: str) -> dict[str, float] | None:
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return {k: v for k, v in record.items() if isinstance(v, int | float) and math.isfinite(v)}
    return None
