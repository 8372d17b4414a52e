"""Training under CPU contention: its time relative to a fair share of the processor (Linux).

Fair share: P busy processes and one training share the machine equally, so that each gets 1 / (P + 1) of the CPU time.
A training that needs W seconds of CPU time alone is done when all P + 1 processes have used W · (P + 1) seconds; on C
idle cores after W · (P + 1) / C seconds. The ratio is

    (CPU time of the training and of all busy processes while it ran) / (W · (P + 1))

The ratio is 1 at the fair share and does not depend on other load. All processes are children of this process, so that
a scheduler that groups by session puts them in one group. Imports and the features of frozen encoders are not measured.

`python -m bench contention` measures the cases `files` and `features`; `contention.files` or `contention.features`
measures one case. `contention.spinning` is `features` with torch imported before triptych: waiting threads spin.
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

NUM_BUSY = 8  # processes that compete with the training
REPEATS = 3
TIMEOUT_SECONDS = 150  # for one training and the busy processes
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
BUSY_LOOP = f"import time\nend = time.monotonic() + {TIMEOUT_SECONDS}\nwhile time.monotonic() < end: pass"
# A child imports this module, prints "ready", reads the process ids of the busy processes, and trains.
CHILD_CODE = "import {first}; from bench.contention import train_and_measure; train_and_measure({case!r}, {folder!r})"
# For each case the recipe, with overrides that make it take a few seconds.
CASES = {
    "files": ("trimodal", ["training.epochs=2"]),
    "features": ("clap", ["training.epochs=24", "training.batch_size=64", "training.eval_every=3"]),
}


@dataclass(frozen=True)
class Measurement:
    """One training: wall time, CPU time of the training and of the busy processes, and a hash of the weights."""

    seconds: float
    cpu_seconds: float
    busy_cpu_seconds: float
    weights: str


def prepare(folder: Path) -> None:
    """Generate the data of both cases, and cache the features of frozen encoders."""
    import csv

    from triptych.data.synthetic import SyntheticConfig, generate
    from triptych.recipe import Recipe
    from triptych.training.loop import train

    manifest = generate(SyntheticConfig(scenes=200), folder / "world")
    with manifest.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "world" / "features.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "audio"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    name, overrides = CASES["features"]
    one_epoch = [
        *overrides,
        f"data.manifest={folder}/world/features.csv",
        f"data.cache={folder}/cache",
        "training.epochs=1",
    ]
    train(Recipe.load(name, one_epoch), folder / "first", show_progress=False)


def train_and_measure(case: str, folder: str) -> None:
    """Train in a child process when signalled, and print the measurement."""
    from triptych.recipe import Recipe
    from triptych.training.loop import train

    name, overrides = CASES[case]
    manifest = "manifest.csv" if case == "files" else "features.csv"
    recipe = Recipe.load(name, [*overrides, f"data.manifest={folder}/world/{manifest}", f"data.cache={folder}/cache"])
    print("ready", flush=True)
    busy = json.loads(sys.stdin.readline())
    busy_before, cpu_before, started = cpu_time(busy), time.process_time(), time.monotonic()
    train(recipe, Path(folder) / "run", restart=True, show_progress=False)
    durations = [time.monotonic() - started, time.process_time() - cpu_before, cpu_time(busy) - busy_before]
    weights = hashlib.sha256((Path(folder) / "run" / "space.safetensors").read_bytes()).hexdigest()
    print(json.dumps([*durations, weights]), flush=True)


def cpu_time(processes: Sequence[int]) -> float:
    """Return the total CPU seconds of processes, given by their ids."""
    total = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # user and system time
    return total / CLOCK_TICKS


@contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """Run processes that only compute until the block ends, or a time limit."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_once(case: str, folder: Path, num_busy: int, first: str = "triptych") -> Measurement | None:
    """Run one training beside busy processes; None on timeout."""
    command = [sys.executable, "-c", CHILD_CODE.format(first=first, case=case, folder=str(folder))]
    # A child would inherit the wait policy that triptych has set for this process.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        with busy_processes(num_busy) as pids:
            try:
                out, _ = child.communicate(json.dumps(pids) + "\n", timeout=TIMEOUT_SECONDS - 10)
            except subprocess.TimeoutExpired:
                child.kill()
                return None
        return Measurement(*json.loads(out))


def measure(case: str, folder: Path, first: str = "triptych") -> None:
    """Measure without load, with both wait policies alternately, then beside busy processes; print the results."""
    baseline: dict[str, list[Measurement]] = {"triptych": [], "torch": []}
    for _ in range(REPEATS):
        for first_import, runs in baseline.items():
            if measurement := run_once(case, folder, 0, first_import):
                runs.append(measurement)
    needed_seconds = statistics.median(run.cpu_seconds for run in baseline["triptych"])
    print(f"{case}: alone {format_range(baseline['triptych'], 'seconds')} s, {needed_seconds:.2f} s of CPU time")
    ratios = [a.seconds / b.seconds for a, b in zip(baseline["triptych"], baseline["torch"], strict=True)]
    print(
        f"  alone, relative to spinning threads: {statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"
    )
    weights = {run.weights for runs in baseline.values() for run in runs}
    contended = [measurement for _ in range(REPEATS) if (measurement := run_once(case, folder, NUM_BUSY, first))]
    weights |= {run.weights for run in contended}
    if len(contended) < REPEATS:
        print(f"  {REPEATS - len(contended)} of {REPEATS} timed out after {TIMEOUT_SECONDS - 10} s")
    if contended:
        cores = len(os.sched_getaffinity(0))
        slowdowns = [(run.cpu_seconds + run.busy_cpu_seconds) / (needed_seconds * (NUM_BUSY + 1)) for run in contended]
        print(
            f"  beside {NUM_BUSY} busy processes: {format_range(contended, 'seconds')} s, "
            f"{format_range(contended, 'cpu_seconds')} s of CPU "
            f"time; on {cores} idle cores the fair share takes {needed_seconds * (NUM_BUSY + 1) / cores:.1f} s"
        )
        print(
            f"  relative to its fair share: {statistics.median(slowdowns):.2f}× "
            f"({min(slowdowns):.2f}–{max(slowdowns):.2f})"
        )
    print(f"  {'identical weights in all runs' if len(weights) == 1 else f'{len(weights)} DIFFERENT WEIGHTS'}")


def format_range(runs: Sequence[Measurement], field: str) -> str:
    """Format median, minimum and maximum of one field of several runs."""
    values = [getattr(run, field) for run in runs]
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def main(cases: Sequence[str] = tuple(CASES)) -> None:
    """Measure the named cases."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for case in cases:
            if case == "spinning":
                measure("features", Path(folder), first="torch")
            else:
                measure(case, Path(folder))
