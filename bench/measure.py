"""Measurements: time alternately in one process; memory as the peak of a new process above its baseline."""

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
    """Seconds of each repeat of two implementations, measured alternately."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """The median time of triptych divided by the median time of the peer."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest ratio of the two times of a repeat."""
        ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return min(ratios), max(ratios)


def compare(ours: Work, theirs: Work, repeats: int = 5) -> Times:
    """Time both implementations alternately, after a warm-up round."""
    result = Times([], [])
    for repeat in range(repeats + 1):
        for work, times in ((ours, result.ours), (theirs, result.theirs)):
            started = time.perf_counter()
            work()
            if repeat:
                times.append(time.perf_counter() - started)
    return result


def extra_memory(case: str, side: str) -> float:
    """Return the megabytes above the baseline that triptych or the peer needs for a case, in a new process."""
    command = [sys.executable, "-m", "bench.memory", case, side]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_over_baseline(work: Work) -> float:
    """Run a function once and return the increase of the peak resident memory in megabytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    baseline = _read_status("VmRSS")
    work()
    return (_read_status("VmHWM") - baseline) / 1024


def _read_status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(key)).split()[1])
