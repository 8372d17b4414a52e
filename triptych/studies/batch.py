"""What do larger batches buy, and what do they cost?"""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from triptych.contracts import Pair
from triptych.objectives import OBJECTIVES
from triptych.recipe import Recipe
from triptych.similarities import SIMILARITIES
from triptych.space import alone
from triptych.studies.book import Book, Finding, Record, Values
from triptych.studies.lab import Lab, Table, use
from triptych.studies.plots import lines, name_lines, spread_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What do larger batches buy, and what do they cost?"
HOW = (
    "A row for every caption, eight epochs whatever the batch, so that every fit sees as many pairs; the learning "
    "rate grows with the square root of the batch, 1e-3 at 256. Seconds are those of a whole fit; memory is that of "
    "one step of the objective alone, over its baseline, in a process of its own. Left out are cells that would hold "
    "several matrices of more than a gigabyte each, or whose steps take minutes. One seed."
)
SIZES = (32, 128, 512, 2048, 8192, 16384)
WIDTH, EPOCHS = 256, 8
RIVALS: dict[str, tuple[str, dict[str, Any], int]] = {  # objective, settings, the largest batch
    "infonce": ("infonce", {"block": 1024}, 16384),
    "sigmoid": ("sigmoid", {"block": 1024}, 16384),
    "contrastive, 64 negatives": ("contrastive", {"negatives": 64}, 16384),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}, 8192),
    "alignment + uniformity": ("align_uniform", {}, 2048),
    "matching": ("matching", {}, 2048),
}
MEASURE = "text → image R@10"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def cells() -> int:
    """How many cells the study has, at most."""
    return sum(1 for _, _, most in RIVALS.values() for size in SIZES if size <= most)


def run(lab: Lab, book: Book) -> Finding:
    """Every objective at every batch it can hold."""
    table = lab.splits["train"].one_caption_a_row()
    found: dict[str, dict[int, Values]] = {}
    for name, (objective, settings, most) in RIVALS.items():
        sizes = [size for size in SIZES if size <= min(most, len(table))]
        found[name] = {
            size: book.cell(
                partial(_measure, lab, table), _recipe(lab, objective, settings, size), objective=name, batch=size
            )
            for size in sizes
        }
    tables = {
        title: _records(found, key)
        for title, key in (
            (f"{MEASURE} in %", MEASURE),
            ("Seconds a fit", "seconds"),
            ("Megabytes of one step of the objective", "megabytes"),
        )
    }
    highest = {name: max(some, key=lambda size: some[size][MEASURE]) for name, some in found.items()}
    said = [f"{name}: highest at batch {size:,} ({found[name][size][MEASURE]:.1f}%)." for name, size in highest.items()]
    return Finding(tables, said, partial(_draw, found=found))


def _recipe(lab: Lab, objective: str, settings: dict[str, Any], size: int) -> Recipe:
    rate = 1e-3 * (size / 256) ** 0.5
    return lab.recipe(use(objective, **settings), epochs=EPOCHS, batch=size, learning_rate=rate)


def _measure(lab: Lab, table: Table, recipe: Recipe) -> Values:
    objective = recipe.objectives[0]
    started = time.perf_counter()
    space = lab.fit(recipe, table)
    took = time.perf_counter() - started
    with get_context("spawn").Pool(1) as pool:
        megabytes = pool.apply(step_memory, (objective.name, objective.settings, recipe.training.batch))
    return lab.measure(space).values() | {"seconds": took, "megabytes": megabytes}


def step_memory(objective: str, settings: dict[str, Any], size: int) -> float:
    """Megabytes over the baseline that one step of an objective takes, at least 1: for a process of its own."""
    made = OBJECTIVES[objective](**settings)
    _step(made, 64)  # libraries take their share once
    with suppress(OSError):
        CLEAR.write_text("5")  # forget the peak so far: at first it is that of the process that made this one
    before = _peak()
    _step(made, size)
    return max(1.0, (_peak() - before) / 1024)


def _peak() -> float:
    """The largest resident memory since it was last forgotten, in kilobytes."""
    if STATUS.exists():
        return next(float(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _step(objective: torch.nn.Module, size: int) -> None:
    torch.manual_seed(0)
    a, b = (torch.nn.functional.normalize(torch.randn(size, WIDTH), dim=1).requires_grad_() for _ in range(2))
    pair = Pair(alone(a), alone(b), torch.arange(size), SIMILARITIES["cosine"]())
    torch.stack(list(objective(pair).values())).sum().backward()


def _records(found: dict[str, dict[int, Values]], key: str) -> list[Record]:
    return [
        {"objective": name} | {f"{size:,}": some[size][key] if size in some else "–" for size in SIZES}
        for name, some in found.items()
    ]


def _draw(figure: Figure, found: dict[str, dict[int, Values]]) -> None:
    for axes, key, label in zip(
        figure.subplots(1, 3),
        (MEASURE, "seconds", "megabytes"),
        (f"{MEASURE} (%)", "seconds a fit", "megabytes a step"),
        strict=True,
    ):
        series = {name: {float(size): v[key] for size, v in some.items()} for name, some in found.items()}
        lines(axes, series, "batch", label, log=True)
        axes.tick_params(axis="x", labelrotation=60)
        if key != MEASURE:
            spread_out(axes)
    name_lines(figure)
