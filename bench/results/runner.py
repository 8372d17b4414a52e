"""Runs the commands of a plan, each once: what was measured is stored, and found again by all that decides it."""

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
from bench.results.plan import HOME, Found, Run
from triptych.files import write_text
from triptych.recipe import Recipe

FORM = 2  # raise it where a change of the code changes what a run gives: what was stored before is measured anew


def manifest(name: str) -> Path:
    """The path of a manifest, made first if it is not there."""
    made = DATA[name]
    for need in made.needs:
        manifest(need)
    with _alone(made.path):
        if not made.path.exists():
            # Not beside it: a command may want its folder empty.
            command.run(filled(name), HOME / "logs" / f"{name}.log")
    return made.path


def filled(name: str) -> list[str]:
    """The command that makes a manifest, with the paths of those it needs."""
    made = DATA[name]
    paths = {need: str(DATA[need].path) for need in made.needs} | {"data": str(made.path)}
    return [word.format(**paths) for word in made.command]


def stored(run: Run) -> Found | None:
    """What was measured of a run, if it was; another recipe or other data is another run."""
    path = _store(run)
    return json.loads(path.read_text()) if path.exists() else None


def measured(run: Run) -> Found:
    """What is measured of a run: stored already, or trained and measured now."""
    data, test = manifest(run.data), manifest(run.measured_on)
    with _alone(_store(run)):
        known = stored(run)
        if known is not None:
            return known
        folder = folder_of(run)
        _clear_others(folder, _key(run))
        print(f"   {folder.name} …", end="", flush=True)
        found: dict[str, Any] = {"run": folder.name, **_train(run, folder, data)}
        for name in run.row.measures:
            done = command.run(run.measure(name, str(folder), str(test)), folder.with_suffix(".log"))
            found[name] = json.loads(done.output)
        write_text(_store(run), json.dumps(found, indent=1) + "\n")
        print(f" {found['seconds']:.0f} s", flush=True)
        return found


def folder_of(run: Run) -> Path:
    """The run folder: recipe, data and seed, and a few digits that tell changed recipes apart."""
    changed = f"-{hashlib.sha256(repr(run.row.changes).encode()).hexdigest()[:6]}" if run.row.changes else ""
    return HOME / "runs" / f"{run.row.recipe}{changed}-{run.data}-{run.seed}"


def _key(run: Run) -> str:
    """A hash of the effective recipe, the rows of the manifests, the commands that measure and the form of the code."""
    recipe = Recipe.load(run.row.recipe, [*run.row.changes, f"training.seed={run.seed}"]).text()
    paths = [DATA[name].path for name in (run.data, run.measured_on)]
    rows = b"\0".join(_content(path, path.stat().st_mtime_ns) for path in paths if path.exists())
    measures = repr((FORM, sorted(run.row.measures.items())))
    return hashlib.sha256(b"\0".join([recipe.encode(), rows, measures.encode()])).hexdigest()[:16]


@cache
def _content(path: Path, _changed: int) -> bytes:
    """A manifest, read once for each time it was changed."""
    return path.read_bytes()


def _store(run: Run) -> Path:
    return HOME / "found" / f"{folder_of(run).name}.{_key(run)}.json"


def _clear_others(folder: Path, key: str) -> None:
    """Keep a run that was interrupted, remove one of a recipe that has changed since."""
    mark = folder.with_suffix(".key")
    if not mark.exists() or mark.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(mark, key)


def _train(run: Run, folder: Path, data: Path) -> dict[str, Any]:
    """Train; what it cost (seconds of all epochs, peak of resident memory), and the last line of its metrics."""
    done = command.run(run.train(str(folder), str(data)), folder.with_suffix(".log"))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = sum(line["seconds"] for line in metrics)
    return {"seconds": seconds, "megabytes": done.megabytes, "metrics": metrics[-1]}


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time makes a file; another one waits for it. The time waited is not measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    locks = HOME / "locks"  # not beside it, as with logs
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "-".join(path.parts).strip("/")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def elapsed(started: float) -> str:
    """Minutes since."""
    return f"{(time.monotonic() - started) / 60:.1f} min"
