"""Run the commands of a page. Measurements are stored by recipe, data and version, so that each run is made once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bench.results import command
from bench.results.data import DATA
from bench.results.schema import RESULTS_FOLDER, Measurements, Run
from triptych.files import write_text
from triptych.recipe import Recipe
from triptych.training.metrics_log import read_metrics

FORMAT_VERSION = 2  # increase it when a change of the code changes results, so that stored measurements are repeated


def ensure_manifest(name: str) -> Path:
    """Return the path of a manifest; make it if it does not exist."""
    dataset = DATA[name]
    for need in dataset.needs:
        ensure_manifest(need)
    with _exclusive_lock(dataset.path):
        if not dataset.path.exists():
            # The log is in another folder, since a command may need an empty folder.
            command.run(dataset_command(name), RESULTS_FOLDER / "logs" / f"{name}.log")
    return dataset.path


def dataset_command(name: str) -> list[str]:
    """Return the command that makes a manifest."""
    dataset = DATA[name]
    paths = {need: str(DATA[need].path) for need in dataset.needs} | {"data": str(dataset.path)}
    return [word.format(**paths) for word in dataset.command]


def load_measurements(run: Run) -> Measurements | None:
    """Return the stored measurements of a run with this recipe and data, or None."""
    path = _measurements_path(run)
    return json.loads(path.read_text()) if path.exists() else None


def measure_run(run: Run) -> Measurements:
    """Return the stored measurements of a run, or train and measure it."""
    data, test = ensure_manifest(run.data), ensure_manifest(run.test_data)
    with _exclusive_lock(_measurements_path(run)):
        existing = load_measurements(run)
        if existing is not None:
            return existing
        folder = run_folder(run)
        _clear_stale_run(folder, _compute_key(run))
        print(f"   {folder.name} …", end="", flush=True)
        measurements: dict[str, Any] = {"run": folder.name, **_train(run, folder, data)}
        for name in run.row.measures:
            result = command.run(run.measure_command(name, str(folder), str(test)), folder.with_suffix(".log"))
            measurements[name] = json.loads(result.output)
        write_text(_measurements_path(run), json.dumps(measurements, indent=1) + "\n")
        print(f" {measurements['seconds']:.0f} s", flush=True)
        return measurements


def run_folder(run: Run) -> Path:
    """Return the run folder: recipe, a hash of its overrides, data and seed."""
    suffix = f"-{hashlib.sha256(repr(run.row.overrides).encode()).hexdigest()[:6]}" if run.row.overrides else ""
    return RESULTS_FOLDER / "runs" / f"{run.row.recipe}{suffix}-{run.data}-{run.seed}"


def _compute_key(run: Run) -> str:
    """Return a hash of the effective recipe, the manifests, the evaluation commands and the format version."""
    recipe = Recipe.load(run.row.recipe, [*run.row.overrides, f"training.seed={run.seed}"]).to_toml()
    paths = [DATA[name].path for name in (run.data, run.test_data)]
    rows = b"\0".join(_content(path, path.stat().st_mtime_ns) for path in paths if path.exists())
    measures = repr((FORMAT_VERSION, sorted(run.row.measures.items())))
    return hashlib.sha256(b"\0".join([recipe.encode(), rows, measures.encode()])).hexdigest()[:16]


@cache
def _content(path: Path, _changed: int) -> bytes:
    """Read a manifest, once per modification."""
    return path.read_bytes()


def _measurements_path(run: Run) -> Path:
    return RESULTS_FOLDER / "measurements" / f"{run_folder(run).name}.{_compute_key(run)}.json"


def _clear_stale_run(folder: Path, key: str) -> None:
    """Keep the folder of an interrupted run; remove a run folder of another recipe or other data."""
    key_file = folder.with_suffix(".key")
    if not key_file.exists() or key_file.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(key_file, key)


def _train(run: Run, folder: Path, data: Path) -> dict[str, Any]:
    """Train; return the seconds of all epochs, the peak memory and the metrics of the last epoch."""
    result = command.run(run.train_command(str(folder), str(data)), folder.with_suffix(".log"))
    metrics = read_metrics(folder)
    seconds = sum(line["seconds"] for line in metrics)
    return {"seconds": seconds, "megabytes": result.megabytes, "metrics": metrics[-1]}


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock while a file is made; other processes wait. The waiting time is not measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    locks = RESULTS_FOLDER / "locks"  # in another folder, like the logs
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "-".join(path.parts).strip("/")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def format_elapsed(started: float) -> str:
    """Format the minutes since `started`."""
    return f"{(time.monotonic() - started) / 60:.1f} min"
