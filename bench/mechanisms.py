"""Compare each mechanism with its peer: print the table and write it to docs/speed.md."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch

from bench.cases import CASES, Case
from bench.measure import compare, extra_memory

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
PAGE_HEADER = """# Speed and memory

![Seconds per step over the batch size, triptych and other libraries, log–log axes](speed.png)

`python -m bench scaling` draws the figure, and `python -m bench mechanisms` prints the table; `make bench` runs both.

Times are for a forward and backward pass from features to gradients, on the CPU in float32, with {threads} threads and
torch {torch}. Both implementations run alternately in one process. The ratio is the median time of triptych over the
median time of the other library; the range is the smallest and largest ratio of paired repeats. Memory is the peak of a
new process minus its memory before the computation. The other libraries are installed from PyPI for the benchmark only.

| computation | compared with | triptych | other | ratio (range) | target | memory triptych / other | target |
|---|---|---|---|---|---|---|---|
"""


def format_row(name: str, case: Case) -> str:
    """Measure one case and format its row."""
    ours, theirs = case.make()
    ours_mb = extra_memory(name, "ours")
    if theirs is None:
        started = time.perf_counter()
        ours()
        seconds = time.perf_counter() - started
        return f"| {case.title} | {case.peer} | {seconds:.0f} s | – | – | – | {ours_mb:.0f} MB | ≤ 1 GB |"
    times = compare(ours, theirs, case.repeats)
    low, high = times.spread
    theirs_mb = extra_memory(name, "theirs")
    memory_target = f"≤ {case.max_memory_ratio:.3g}×" if case.max_memory_ratio else "–"
    return (
        f"| {case.title} | {case.peer} | {statistics.median(times.ours) * 1000:.0f} ms "
        f"| {statistics.median(times.theirs) * 1000:.0f} ms | {times.ratio:.3g}× ({low:.3g}–{high:.3g}) "
        f"| ≤ {case.max_time_ratio:.3g}× | {ours_mb:.0f} / {theirs_mb:.0f} MB = {ours_mb / theirs_mb:.2g}× "
        f"| {memory_target} |"
    )


def main(names: list[str] | None = None) -> None:
    """Measure the named cases, or all; replace their rows on the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    rows_by_title = {
        title: line for case in CASES.values() for line in lines if line.startswith(title := f"| {case.title} |")
    }
    for name in names or CASES:
        line = format_row(name, CASES[name])
        rows_by_title[f"| {CASES[name].title} |"] = line
        print(line, flush=True)
        header = PAGE_HEADER.format(threads=torch.get_num_threads(), torch=torch.__version__)
        table = [rows_by_title[title] for case in CASES.values() if (title := f"| {case.title} |") in rows_by_title]
        PAGE.write_text(header + "\n".join(table) + "\n", encoding="utf-8")
