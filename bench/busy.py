"""A training beside busy processes: how long it takes, against its fair share of the processor (Linux).

Fair share: P busy processes and one training share the machine equally, so that each process gets 1 / (P + 1) of the
processor time there is. A training that needs W seconds of processor time alone is then done when all P + 1 processes
together have had W · (P + 1) seconds; on C cores that nobody else uses, after W · (P + 1) / C seconds. The ratio is

    (processor time of the training and of all busy processes while it ran) / (W · (P + 1))

which is 1 at the fair share, and does not change when others use the machine at the same time. Every process is started
from this one, so that a scheduler that groups by session puts them in one group. Only training counts: imports and the
features of frozen encoders come before.

`python -m bench busy` measures both cases; `busy.files` and `busy.features` one of them; `busy.spinning` the second
where torch is imported before triptych: its threads then spin while they wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BUSY = 8  # processes beside the training
REPEATS = 3
LONGEST = 150  # seconds that one training and the processes beside it may take
TICKS = os.sysconf("SC_CLK_TCK")
LOOP = f"import time\nend = time.monotonic() + {LONGEST}\nwhile time.monotonic() < end: pass"
# A child is this file: it imports, says that it is ready, waits for the numbers of the busy processes, and trains.
CHILD = "import {first}; from bench.busy import train_and_measure; train_and_measure({case!r}, {folder!r})"
# For each case: the recipe, and what is changed in it so that it takes a few seconds.
CASES = {
    "files": ("trimodal", ["training.epochs=2"]),
    "features": ("clap", ["training.epochs=24", "training.batch=64", "training.validate=3"]),
}


@dataclass(frozen=True)
class Measured:
    """One training: seconds of the clock, processor seconds of its own and of the busy processes, and its weights."""

    seconds: float
    own: float
    busy: float
    weights: str


def prepare(folder: Path) -> None:
    """Data for both cases, and the features of frozen encoders."""
    import csv

    from triptych.data.world import World, make
    from triptych.recipe import Recipe
    from triptych.training.loop import train

    manifest = make(World(scenes=200), folder / "world")
    with manifest.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "world" / "features.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "audio"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    name, changes = CASES["features"]
    once = [*changes, f"data.manifest={folder}/world/features.csv", f"data.cache={folder}/cache", "training.epochs=1"]
    train(Recipe.load(name, once), folder / "first", show=False)


def train_and_measure(case: str, folder: str) -> None:
    """In a process of its own: train when told, and print what it took."""
    from triptych.recipe import Recipe
    from triptych.training.loop import train

    name, changes = CASES[case]
    table = "manifest.csv" if case == "files" else "features.csv"
    recipe = Recipe.load(name, [*changes, f"data.manifest={folder}/world/{table}", f"data.cache={folder}/cache"])
    print("ready", flush=True)
    busy = json.loads(sys.stdin.readline())
    before, own, started = processor_time(busy), time.process_time(), time.monotonic()
    train(recipe, Path(folder) / "run", restart=True, show=False)
    took = [time.monotonic() - started, time.process_time() - own, processor_time(busy) - before]
    weights = hashlib.sha256((Path(folder) / "run" / "space.safetensors").read_bytes()).hexdigest()
    print(json.dumps([*took, weights]), flush=True)


def processor_time(processes: Sequence[int]) -> float:
    """Seconds that some processes have had of the processor."""
    total = 0
    for number in processes:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
    return total / TICKS


@contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """Processes that do nothing but compute, until the block ends or their time is over."""
    running = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_once(case: str, folder: Path, beside: int, first: str = "triptych") -> Measured | None:
    """One training, with so many busy processes beside it; None where it was not done in time."""
    command = [sys.executable, "-c", CHILD.format(first=first, case=case, folder=str(folder))]
    # Without the wait policy that triptych has set for this process, and that a child would inherit.
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        with busy_processes(beside) as numbers:
            try:
                out, _ = child.communicate(json.dumps(numbers) + "\n", timeout=LONGEST - 10)
            except subprocess.TimeoutExpired:
                child.kill()
                return None
        return Measured(*json.loads(out))


def measure(case: str, folder: Path, first: str = "triptych") -> None:
    """Alone, both ways of waiting alternately; then beside busy processes; and print it."""
    alone: dict[str, list[Measured]] = {"triptych": [], "torch": []}
    for _ in range(REPEATS):
        for way, runs in alone.items():
            if found := run_once(case, folder, 0, way):
                runs.append(found)
    needed = statistics.median(run.own for run in alone["triptych"])
    print(f"{case}: alone {shown(alone['triptych'], 'seconds')} s, {needed:.2f} s of processor time")
    ratios = [a.seconds / b.seconds for a, b in zip(alone["triptych"], alone["torch"], strict=True)]
    print(f"  alone, over threads that spin: {statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})")
    weights = {run.weights for runs in alone.values() for run in runs}
    beside = [found for _ in range(REPEATS) if (found := run_once(case, folder, BUSY, first))]
    weights |= {run.weights for run in beside}
    if len(beside) < REPEATS:
        print(f"  {REPEATS - len(beside)} of {REPEATS} were not done after {LONGEST - 10} s")
    if beside:
        cores = len(os.sched_getaffinity(0))
        over = [(run.own + run.busy) / (needed * (BUSY + 1)) for run in beside]
        print(
            f"  beside {BUSY} busy processes: {shown(beside, 'seconds')} s, {shown(beside, 'own')} s of processor "
            f"time; on {cores} free cores the fair share takes {needed * (BUSY + 1) / cores:.1f} s"
        )
        print(f"  over its fair share: {statistics.median(over):.2f}× ({min(over):.2f}–{max(over):.2f})")
    print(f"  {'the same weights in every run' if len(weights) == 1 else f'{len(weights)} DIFFERENT WEIGHTS'}")


def shown(runs: Sequence[Measured], name: str) -> str:
    """Median, least and most of one number of several runs."""
    values = [getattr(run, name) for run in runs]
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def main(cases: Sequence[str] = tuple(CASES)) -> None:
    """Measure the cases that are named."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for case in cases:
            if case == "spinning":
                measure("features", Path(folder), first="torch")
            else:
                measure(case, Path(folder))
