"""Metrics for TensorBoard, where it is installed: the numbers of metrics.jsonl over again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

TENSORBOARD_FOLDER = "tensorboard"
# TensorBoard knows its files by "tfevents"; its own writer would put the name of the machine into the file's name.
EVENTS_FILE = "events.out.tfevents.0.triptych"


class TensorBoardWriter:
    """The events of one run. Made anew from the lines of metrics.jsonl, so that the two never disagree."""

    def __init__(self, folder: Path, lines: Iterable[str]) -> None:
        self.path = folder / TENSORBOARD_FOLDER / EVENTS_FILE if find_spec("tensorboard") else None
        shutil.rmtree(folder / TENSORBOARD_FOLDER, ignore_errors=True)
        for line in lines:
            self.add_metrics_line(line)

    def add_metrics_line(self, line: str) -> None:
        """One more line of metrics.jsonl."""
        if self.path is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            metrics = json.loads(line)
            step, wall_time = int(metrics.pop("epoch")), float(metrics.pop("time", 0.0))
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # somebody has edited the file
        scalars = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        is_new = not self.path.exists()
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("ab") as file:
            writer = RecordWriter(file)
            if is_new:
                writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
            writer.write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)).SerializeToString())
