"""How each mechanism grows with the batch: seconds and peak memory over N, ours beside the peer, to docs/speed.png."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.cases import infonce, match, sigmoid, triplets, word_region
from bench.cases import matchmap as matchmaps
from bench.measure import Work

PICTURE = Path(__file__).parent.parent / "docs" / "speed.png"
LONGEST = 4.0  # seconds a step may take before a side's line ends
OURS, THEIRS = "#1f77b4", "#d9772b"
SIZES = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
BATCHES = [8, 16, 32, 64, 128]
SIDES: dict[str, tuple[str, list[int], Callable[[int], tuple[Work, Work | None]]]] = {
    "InfoNCE, D = 512": ("open_clip", SIZES, lambda n: infonce(n, 512)),
    "sigmoid, D = 512": ("open_clip", SIZES, lambda n: sigmoid(n, 512)),
    "matching, epsilon 0.05": ("POT", SIZES, lambda n: match(n, 512, 0.05)),
    "partial matching, mass 0.95": ("POT", SIZES[:5], lambda n: match(n, 512, 0.05, 0.95)),
    "hardest triplets, D = 256": ("pytorch-metric-learning", SIZES, lambda n: triplets("hardest", n)),
    "word–region, 18 × 289": ("loop over captions", BATCHES, word_region),
    "matchmap MISA, 49 × 128": ("double loop", BATCHES, matchmaps),
}


def line(sizes: list[int], make: Callable[[int], Work]) -> tuple[list[int], list[float]]:
    """Median seconds for each size, until a step takes too long."""
    reached: list[int] = []
    seconds: list[float] = []
    for n in sizes:
        work = make(n)
        work()
        times = []
        for _ in range(3):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        reached.append(n)
        seconds.append(statistics.median(times))
        if seconds[-1] * (sizes[1] / sizes[0]) ** 2 > LONGEST:
            break
    return reached, seconds


def main() -> None:
    """Measure every line and draw the picture."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 7.2), layout="constrained")
    for place, (name, (peer, sizes, make)) in zip(axes.flat, SIDES.items(), strict=False):
        for label, side, colour in (("ours", 0, OURS), (peer, 1, THEIRS)):
            reached, seconds = line(sizes, lambda n, make=make, side=side: make(n)[side] or (lambda: None))
            place.plot(reached, seconds, "o-", color=colour, label=label)
            print(f"{name:30} {label:24}" + "  ".join(f"{n}: {s:.3g}" for n, s in zip(reached, seconds, strict=True)))
        place.set(title=name, xscale="log", yscale="log", xlabel="batch", ylabel="seconds a step")
        place.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=45, fontsize=8)
        place.minorticks_off()
        place.grid(alpha=0.3)
        place.legend(frameon=False, fontsize=9)
    axes.flat[-1].axis("off")
    figure.suptitle("Forward and backward on two CPU cores, float32; a line ends where a step would take too long")
    figure.savefig(PICTURE, dpi=110)
