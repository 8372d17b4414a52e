"""How we measure: both sides alternately in one process; memory as the peak of a fresh process over its baseline."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of each repeat of both sides, taken alternately."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """Median of ours over median of theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest ratio of two neighbouring repeats."""
        ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return min(ratios), max(ratios)


def compare(ours: Work, theirs: Work, repeats: int = 5) -> Times:
    """Time both, alternately, after one round that does not count."""
    times_of_both = Times([], [])
    for repeat in range(repeats + 1):
        for work, times in ((ours, times_of_both.ours), (theirs, times_of_both.theirs)):
            started = time.perf_counter()
            work()
            if repeat:
                times.append(time.perf_counter() - started)
    return times_of_both


def extra_memory(case: str, side: str) -> float:
    """Megabytes that one run of a side needs over the baseline, in a process of its own."""
    command = [sys.executable, "-m", "bench.memory", case, side]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_over_baseline(work: Work) -> float:
    """Run once and return the peak of resident memory over what was resident before, in megabytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    baseline = _read_status("VmRSS")
    work()
    return (_read_status("VmHWM") - baseline) / 1024


def _read_status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(key)).split()[1])
