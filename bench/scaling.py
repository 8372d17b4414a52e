"""Seconds per step over the batch size for each mechanism and its peer, drawn to docs/speed.png."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.cases import infonce, match, sigmoid, triplets, word_region
from bench.cases import matchmap as matchmaps
from bench.measure import Work

FIGURE = Path(__file__).parent.parent / "docs" / "speed.png"
MAX_STEP_SECONDS = 4.0  # a size is not measured if its step is expected to take longer
OUR_COLOUR, PEER_COLOUR = "#1f77b4", "#d9772b"
BATCH_SIZES = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
SMALL_BATCH_SIZES = [8, 16, 32, 64, 128]
MECHANISMS: dict[str, tuple[str, list[int], Callable[[int], tuple[Work, Work | None]]]] = {
    "InfoNCE, D = 512": ("open_clip", BATCH_SIZES, lambda n: infonce(n, 512)),
    "sigmoid, D = 512": ("open_clip", BATCH_SIZES, lambda n: sigmoid(n, 512)),
    "matching, epsilon 0.05": ("POT", BATCH_SIZES, lambda n: match(n, 512, 0.05)),
    "partial matching, mass 0.95": ("POT", BATCH_SIZES[:5], lambda n: match(n, 512, 0.05, 0.95)),
    "hardest triplets, D = 256": ("pytorch-metric-learning", BATCH_SIZES, lambda n: triplets("hardest", n)),
    "word–region, 18 × 289": ("loop over captions", SMALL_BATCH_SIZES, word_region),
    "matchmap MISA, 49 × 128": ("double loop", SMALL_BATCH_SIZES, matchmaps),
}


def time_sizes(sizes: list[int], make: Callable[[int], Work]) -> tuple[list[int], list[float]]:
    """Return the median seconds for each size, until a step takes too long."""
    measured_sizes: list[int] = []
    seconds: list[float] = []
    for n in sizes:
        work = make(n)
        work()
        times = []
        for _ in range(3):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        measured_sizes.append(n)
        seconds.append(statistics.median(times))
        if seconds[-1] * (sizes[1] / sizes[0]) ** 2 > MAX_STEP_SECONDS:
            break
    return measured_sizes, seconds


def main() -> None:
    """Measure all lines and draw the figure."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 7.2), layout="constrained")
    for panel, (name, (peer, sizes, make)) in zip(axes.flat, MECHANISMS.items(), strict=False):
        for label, side, colour in (("triptych", 0, OUR_COLOUR), (peer, 1, PEER_COLOUR)):
            measured_sizes, seconds = time_sizes(sizes, lambda n, make=make, side=side: make(n)[side] or (lambda: None))
            panel.plot(measured_sizes, seconds, "o-", color=colour, label=label)
            print(
                f"{name:30} {label:24}"
                + "  ".join(f"{n}: {s:.3g}" for n, s in zip(measured_sizes, seconds, strict=True))
            )
        panel.set(title=name, xscale="log", yscale="log", xlabel="batch size", ylabel="seconds per step")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=45, fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize=9)
    axes.flat[-1].axis("off")
    figure.suptitle("Forward and backward on two CPU cores, float32; a line ends where a step would take too long")
    figure.savefig(FIGURE, dpi=110)
