"""Training on few pairs: random heads, and heads that start from the starter space, free or held near it.

Writes few_pairs.csv, few_pairs.json and few_pairs.png to docs/results. Finished trainings are kept in
runs/few_pairs and are not repeated. `python -m bench few_pairs.flickr8k-1` only trains on one dataset with one seed,
so that several processes can share the work. `python -m bench few_pairs.finished` trains nothing, and writes the
results of the numbers of pairs that are finished.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.real_data import find_dataset
from triptych import checkpoint
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.files import write_text
from triptych.interfaces import Modality
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.starter import initialise_heads
from triptych.training.hold_selection import choose_hold, fit_heads, without_encoders
from triptych.training.optimizer import freeze_parameters
from triptych.training.warm_start import (
    MIN_STEPS,
    adopt_init,
    build_space,
    make_recipe,
    raise_epochs,
    reset_heads,
    standardise_heads,
)

RESULTS = Path(__file__).parent.parent / "docs" / "results"
RUNS = Path("runs") / "few_pairs"
SEEDS = (0, 1, 2)
START_OVERRIDES = ["space.encoders.image=efficientnet_lite0"]  # the image encoder of the recipe clap
SCRATCH, WARM, HELD = "random heads", "starter, free", "starter, held"
METHODS = (SCRATCH, WARM, HELD)
TOP = 10
RESAMPLES = 2000


@dataclass(frozen=True)
class Case:
    """A dataset: its rows of one fold per seed, the modality besides text, and the numbers of pairs."""

    name: str
    modality: Modality
    sizes: tuple[int, ...]
    command: tuple[str, ...]
    metric: str


CASES = (
    Case("flickr8k", "image", (0, 50, 200, 1000, 6000), (), "R@10 text to image"),
    Case("esc50", "audio", (0, 50, 200, 1000, 1600), ("--captions", "classes"), "P@10 of named classes"),
)


@dataclass
class Data:
    """The rows of a dataset and the features of both modalities."""

    train: Sequence[Row]
    test: Sequence[Row]
    features: Mapping[Modality, CachedFeatures]


def load_data(case: Case, folder: Path, seed: int, space: Space, split: str = "test") -> Data:
    """Convert a dataset to a manifest, and load the features of its rows."""
    options = list(case.command)
    if case.name == "esc50":  # seed 0, 1, 2: official fold 1, 2, 3
        options += ["--fold", str(seed + 1), "--splits", "three" if split == "valid" else "two"]
    with tempfile.TemporaryDirectory() as temp:
        path = Path(temp) / "manifest.csv"
        command = [sys.executable, "-m", "triptych", "data", case.name, str(folder), "-o", str(path), *options]
        subprocess.run(command, check=True, capture_output=True)
        table = manifest.read(path, allow_outside=True)
    train, test = table.split("train").rows, table.split(split).rows
    features = {}
    for m in (case.modality, "text"):
        sources = [source for row in [*train, *test] for source in sources_of(row, m)]
        features[m] = compute_or_load(space.encoder(m), sources, Cache.default(), progress=f"{case.name} {m}")
    return Data(train, test, features)


@torch.inference_mode()
def score(case: Case, space: Space, data: Data) -> np.ndarray:
    """Return the metric in % for each query: one per caption (Flickr8k) or per class (ESC-50)."""

    def embed(modality: Modality, index: list[int]) -> torch.Tensor:
        pooled, mask = data.features[modality].load_batch(index, with_parts=False)
        return space.eval().project(modality, pooled, mask, "pooled")

    known = {m: features.index_of for m, features in data.features.items()}
    items = embed(case.modality, [known[case.modality][sources_of(row, case.modality)[0]] for row in data.test])
    if case.name == "flickr8k":
        queries = [(i, s) for i, row in enumerate(data.test) for s in sources_of(row, "text")]
        scores = embed("text", [known["text"][s] for _, s in queries]) @ items.T
        own = scores.gather(1, torch.tensor([i for i, _ in queries])[:, None])
        return 100 * ((scores > own).sum(dim=1) < TOP).double().numpy()
    first_rows = {row.group: row for row in data.test}
    scores = embed("text", [known["text"][sources_of(row, "text")[0]] for row in first_rows.values()]) @ items.T
    groups = np.array([row.group for row in data.test])
    best = scores.topk(TOP, dim=1).indices.numpy()
    return 100 * np.array([(groups[top] == group).mean() for top, group in zip(best, first_rows, strict=True)])


def run(case: Case, data: Data, init: str, method: str, size: int, seed: int) -> tuple[np.ndarray, float | None]:
    """Train by one method on `size` random pairs; return the metric of each query and the hold."""
    order = np.random.default_rng(seed).permutation(len(data.train))
    rows = [data.train[i] for i in order[:size]]
    if method == SCRATCH:
        recipe = Recipe.load("clap", [f"training.seed={seed}", f"training.min_steps={MIN_STEPS}"])
        recipe = raise_epochs(recipe.restrict_to({case.modality, "text"}), rows)
        torch.manual_seed(seed)
        space = Space(recipe)
        if rows:
            with without_encoders(space):
                fit_heads(space, rows, data.features, 0.0, recipe)
        return score(case, space, data), None
    recipe = adopt_init(Recipe.parse(make_recipe(init).to_toml(), [f"training.seed={seed}"]))
    recipe = replace(recipe, objectives=(replace(recipe.objectives[0], pairs=((case.modality, "text"),)),))
    space = build_space(recipe)
    if not rows:
        return score(case, space, data), None
    standardise_heads(space, rows, data.features)
    freeze_parameters(space, recipe.training.freeze)
    hold = choose_hold(space, rows, data.features) if method == HELD else 0.0
    reset_heads(space)
    if hold != float("inf"):
        with without_encoders(space):
            fit_heads(space, rows, data.features, hold, raise_epochs(recipe, rows))
    return score(case, space, data), hold


def bootstrap(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95% interval of the mean over queries; rows are seeds."""
    means = values.mean(axis=0)
    resampled = [means[rng.integers(0, len(means), len(means))].mean() for _ in range(RESAMPLES)]
    return float(np.percentile(resampled, 2.5)), float(np.percentile(resampled, 97.5))


def summarise(case: Case, size: int, results: Mapping[str, np.ndarray]) -> list[dict[str, object]]:
    """Return one line per method: the mean, its interval, and the paired differences to the others."""
    lines = []
    for method, values in results.items():
        rng = np.random.default_rng(0)
        low, high = bootstrap(values, rng)
        line = {"dataset": case.name, "metric": case.metric, "pairs": size, "method": method}
        line |= {"mean": round(float(values.mean()), 2), "low": round(low, 2), "high": round(high, 2)}
        if method == HELD:
            for other in (SCRATCH, WARM):
                difference = values - results[other]
                low, high = bootstrap(difference, np.random.default_rng(0))
                text = f"{difference.mean():+.1f} ({low:+.1f} to {high:+.1f})"
                line[f"minus {other}"] = text
        lines.append(line)
        print(line, flush=True)
    return lines


def plot(summary: Sequence[Mapping[str, object]], path: Path) -> None:
    """Plot the learning curves."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(CASES), figsize=(10, 4), layout="constrained")
    for axis, case in zip(axes, CASES, strict=True):
        sizes = list(dict.fromkeys(int(str(line["pairs"])) for line in summary if line["dataset"] == case.name))
        positions = range(len(sizes))
        for method, colour in zip(METHODS, ("#888888", "#d95f02", "#1b6ca8"), strict=True):
            lines = [line for line in summary if line["dataset"] == case.name and line["method"] == method]
            means, lows, highs = (np.array([float(str(line[k])) for line in lines]) for k in ("mean", "low", "high"))
            axis.fill_between(positions, lows, highs, color=colour, alpha=0.15, linewidth=0)
            axis.plot(positions, means, "o-", color=colour, label=method, markersize=4)
        axis.set(xticks=positions, xticklabels=[f"{size:,}" for size in sizes], title=case.name)
        axis.set(xlabel="training pairs", ylabel=f"{case.metric} (%)", ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def load_or_run(case: Case, seed: int, start: Space) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the hold and the metric of each query for each number of pairs and method."""
    cells = dict[tuple[int, str], dict[str, Any]]()
    missing = [cell for cell in product(case.sizes, METHODS) if not _cell_path(case, *cell, seed).exists()]
    with tempfile.TemporaryDirectory() as temp:
        init = f"{temp}/start.safetensors"
        if missing:
            folder = find_dataset(case.name)
            if folder is None:
                sys.exit(f"{case.name} not available: set TRIPTYCH_DATA to the folder that contains it")
            checkpoint.save(start, Path(init))
            data = load_data(case, folder, seed, start)
            for size, method in missing:
                values, hold = run(case, data, init, method, size, seed)
                text = json.dumps({"hold": hold, "values": values.tolist()})
                write_text(_cell_path(case, size, method, seed), text)
                print(f"{case.name} {size} {method} seed {seed}: {values.mean():.1f} hold {hold}", flush=True)
    for size, method in product(case.sizes, METHODS):
        cells[size, method] = json.loads(_cell_path(case, size, method, seed).read_text(encoding="utf-8"))
    return cells


def _cell_path(case: Case, size: int, method: str, seed: int) -> Path:
    return RUNS / f"{case.name}-{size}-{method.replace(', ', '-').replace(' ', '-')}-{seed}.json"


def _restrict_to_finished(case: Case) -> Case:
    cells = {size: [_cell_path(case, size, m, seed) for m, seed in product(METHODS, SEEDS)] for size in case.sizes}
    return replace(case, sizes=tuple(size for size, paths in cells.items() if all(path.exists() for path in paths)))


def main(cases: Sequence[str] = ()) -> None:
    """Measure all sizes, methods and seeds, and write the results."""
    start = Space(Recipe.load("starter", START_OVERRIDES))
    initialise_heads(start, Cache.default())
    only_finished = list(cases) == ["finished"]
    if cases and not only_finished:
        name, seed = cases[0].split("-")
        load_or_run(next(case for case in CASES if case.name == name), int(seed), start)
        return
    runs: list[dict[str, object]] = []
    summary: list[dict[str, object]] = []
    for full_case in CASES:
        case = _restrict_to_finished(full_case) if only_finished else full_case
        cells = [load_or_run(case, seed, start) for seed in SEEDS]
        for size in case.sizes:
            for method, (seed, cell) in product(METHODS, zip(SEEDS, cells, strict=True)):
                hold, score = cell[size, method]["hold"], round(float(np.mean(cell[size, method]["values"])), 2)
                line = {"dataset": case.name, "pairs": size, "method": method, "seed": seed}
                runs.append(line | {"hold": "" if hold is None else hold, "score": score})
            stacked = {m: np.array([cell[size, m]["values"] for cell in cells]) for m in METHODS}
            summary += summarise(case, size, stacked)
    with (RESULTS / "few_pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0]))
        writer.writeheader()
        writer.writerows(runs)
    write_text(RESULTS / "few_pairs.json", json.dumps(summary, indent=1) + "\n")
    plot(summary, RESULTS / "few_pairs.png")
