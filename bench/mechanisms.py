"""Every mechanism beside its peer: prints the table and writes it to docs/speed.md."""

from __future__ import annotations

import statistics
from pathlib import Path

import torch

from bench.cases import CASES, Case
from bench.measure import compare, extra_memory

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
HEAD = """# Speed and memory

Forward and backward on the CPU in float32, from features to gradients, made by `make bench` (`python -m bench
mechanisms`). Both sides run alternately in one process; the ratio is ours over theirs, of medians, with the smallest
and largest ratio of neighbouring repeats. Memory is the peak of a fresh process over its baseline. {threads} threads,
torch {torch}. Peers are installed from the package index for the bench only.

| work | beside | ours | theirs | ratio (spread) | reach | memory ours / theirs | reach |
|---|---|---|---|---|---|---|---|
"""


def row(name: str, case: Case) -> str:
    """One line of the table."""
    ours, theirs = case.make()
    ours_mb = extra_memory(name, "ours")
    if theirs is None:
        times = [compare(ours, lambda: None, 2).ours[-1]]
        return f"| {case.work} | – | {times[0]:.1f} s | – | – | – | {ours_mb:.0f} MB | – |"
    times = compare(ours, theirs, case.repeats)
    low, high = times.spread
    theirs_mb = extra_memory(name, "theirs")
    asked = f"≤ {case.memory:.3g}×" if case.memory else "–"
    return (
        f"| {case.work} | {case.beside} | {statistics.median(times.ours) * 1000:.0f} ms "
        f"| {statistics.median(times.theirs) * 1000:.0f} ms | {times.ratio:.3g}× ({low:.3g}–{high:.3g}) "
        f"| ≤ {case.time:.3g}× | {ours_mb:.0f} / {theirs_mb:.0f} MB = {ours_mb / theirs_mb:.2g}× | {asked} |"
    )


def main(names: list[str] | None = None) -> None:
    """Measure the named cases, or all; only all of them are written to the page."""
    lines = []
    for name in names or CASES:
        lines.append(row(name, CASES[name]))
        print(lines[-1], flush=True)
    if not names:
        head = HEAD.format(threads=torch.get_num_threads(), torch=torch.__version__)
        PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
