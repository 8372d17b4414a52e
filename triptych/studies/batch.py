"""What do larger batches gain, and what do they cost?"""

import resource
import time
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from triptych.objectives import OBJECTIVES
from triptych.recipe import Recipe
from triptych.studies.experiment import Experiment, FeatureTable, configure_objective
from triptych.studies.page import Record, Study, StudyResult
from triptych.studies.plots import add_legend, draw_lines, set_log_y
from triptych.studies.result_cache import ResultCache, Values

QUESTION = "What do larger batches gain, and what do they cost?"
SETUP = (
    "Each caption is a row of its own. Every batch size is trained for eight epochs, so that all fits see equally "
    "many pairs. The learning rate grows with the square root of the batch size (1e-3 at 256). The time is the "
    "duration of a complete fit. The memory is the peak of one step of the objective alone, above the baseline, "
    "measured in a separate process. Fits that would need several matrices of more than a gigabyte each, or minutes "
    "per step, are left out (–). One seed."
)
BATCH_SIZES = (32, 128, 512, 2048, 8192, 16384)
EMBED_DIM, EPOCHS = 256, 8
METHODS: dict[str, tuple[str, dict[str, Any], int]] = {  # objective, settings, largest batch size
    "infonce": ("infonce", {"stream_block": 1024}, 16384),
    "sigmoid": ("sigmoid", {"stream_block": 1024}, 16384),
    "contrastive, 64 negatives": ("contrastive", {"num_negatives": 64}, 16384),
    "triplet, semi-hard": ("triplet", {"negatives": "semi_hard"}, 8192),
    "alignment + uniformity": ("align_uniform", {}, 2048),
    "matching": ("matching", {}, 2048),
}
METRIC = "text → image R@10"
PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def run(experiment: Experiment, cache: ResultCache) -> StudyResult:
    """Train each objective with all batch sizes up to the largest batch size of the objective."""
    table = experiment.splits["train"].expand_captions()
    results: dict[str, dict[int, Values]] = {name: {} for name in METHODS}
    compute = partial(_measure, experiment, table)
    for name, (objective, settings, max_size) in METHODS.items():
        for size in BATCH_SIZES:
            if size <= min(max_size, len(table)):
                training = {"epochs": EPOCHS, "batch_size": size, "learning_rate": 1e-3 * (size / 256) ** 0.5}
                recipe = experiment.make_recipe(configure_objective(objective, **settings), **training)
                results[name][size] = cache.load_or_compute(compute, recipe, objective=name, batch_size=size)
    titles = {f"{METRIC} in %": METRIC, "Training time in seconds": "seconds"}
    titles["Peak memory of one step in MB"] = "megabytes"
    tables: dict[str, list[Record]] = {
        title: [
            {"objective": name} | {f"{size:,}": by_size[size][key] if size in by_size else "–" for size in BATCH_SIZES}
            for name, by_size in results.items()
        ]
        for title, key in titles.items()
    }
    best_sizes = {name: max(by_size, key=lambda size: by_size[size][METRIC]) for name, by_size in results.items()}
    conclusions = [
        f"{name}: best at batch size {size:,} ({results[name][size][METRIC]:.1f}%)."
        for name, size in best_sizes.items()
    ]
    return StudyResult(tables, conclusions, partial(_draw_plot, results=results))


def _measure(experiment: Experiment, table: FeatureTable, recipe: Recipe) -> Values:
    objective = recipe.objectives[0]
    started = time.perf_counter()
    space = experiment.fit(recipe, table)
    seconds = time.perf_counter() - started
    with get_context("spawn").Pool(1) as pool:
        megabytes = pool.apply(measure_step_memory, (objective.name, objective.settings, recipe.training.batch_size))
    return experiment.evaluate(space).to_dict() | {"seconds": seconds, "megabytes": megabytes}


def measure_step_memory(objective: str, settings: dict[str, Any], size: int) -> float:
    """Measure the peak memory of one step in MB above the baseline, at least 1. Call it in a separate process."""
    module = OBJECTIVES[objective](**settings)
    _run_step(module, 64)  # warm up: libraries allocate their buffers once
    with suppress(OSError):
        PROC_CLEAR_REFS.write_text("5")  # reset the peak: it is inherited from the parent process
    baseline = _read_peak_memory()
    _run_step(module, size)
    return max(1.0, (_read_peak_memory() - baseline) / 1024)


def _read_peak_memory() -> float:
    """Return the peak resident memory since the last reset, in kilobytes."""
    if PROC_STATUS.exists():
        return next(float(line.split()[1]) for line in PROC_STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _run_step(objective: torch.nn.Module, size: int) -> None:
    torch.manual_seed(0)
    a, b = (torch.nn.functional.normalize(torch.randn(size, EMBED_DIM), dim=1).requires_grad_() for _ in range(2))
    objective(a, b).backward()


def _draw_plot(figure: Figure, results: dict[str, dict[int, Values]]) -> None:
    labels = {METRIC: f"{METRIC} (%)", "seconds": "training time (s)", "megabytes": "memory of a step (MB)"}
    for axes, (key, label) in zip(figure.subplots(1, 3), labels.items(), strict=True):
        series = {name: {float(size): v[key] for size, v in by_size.items()} for name, by_size in results.items()}
        draw_lines(axes, series, "batch size", label, log_x=True)
        axes.tick_params(axis="x", labelrotation=60)
        if key != METRIC:
            set_log_y(axes)
    add_legend(figure)


def count_runs() -> int:
    """Return the maximum number of fits."""
    return sum(size <= max_size for _, _, max_size in METHODS.values() for size in BATCH_SIZES)


STUDY = Study(QUESTION, SETUP, count_runs, run)
