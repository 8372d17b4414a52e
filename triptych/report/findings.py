"""Everything a report tells, measured and gathered before a line of it is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.checkpoint import fingerprint, load
from triptych.contracts import Modality
from triptych.data.cache import Cache
from triptych.data.manifest import Manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation import records
from triptych.evaluation.classification import Classification
from triptych.evaluation.evaluate import Evaluation, evaluate
from triptych.evaluation.geometry import Geometry, describe
from triptych.evaluation.transitivity import Transit, trained_pairs, transits
from triptych.evaluation.zero_shot import classify
from triptych.progress import progress
from triptych.recipe import Recipe
from triptych.report.examples import Example, pick
from triptych.report.layouts import Points, Square, along_axes, neighbourhoods, squares
from triptych.space import Space
from triptych.training.run import METRICS_FILE

TEMPERATURE = re.compile(r"\w+\((\w+),(\w+)\).*\.temperature")


@dataclass(frozen=True)
class Findings:
    """What is known of a run, on some rows."""

    run: Path
    fingerprint: str
    recipe: Recipe
    space: Space
    data: Manifest  # only the rows that were measured
    split: str
    history: list[dict[str, Any]]  # of training, an entry an epoch; empty for a space that was not trained here
    trained: set[frozenset[str]]
    evaluation: Evaluation
    geometry: Geometry
    transits: list[Transit]
    zero_shot: list[Classification]
    examples: list[tuple[list[Example], list[Example]]]  # good and bad, of each direction
    axes: Points
    map: Points | None
    squares: list[Square]


def gather(
    run: Path, table: Manifest, split: str | None = None, show: bool = True, cache: Cache | str = ""
) -> Findings:
    """Measure a space on the rows of a split ("all" for all of them), and find what to show of it."""
    space = load(run)
    split = split or space.recipe.data.test
    data = table if split == "all" else table.split(split)
    history = read_history(run)
    trained = trained_pairs(space.recipe, history[-1] if history else ())
    evaluation = evaluate(space, data.rows, show, cache)
    steps = ("shape", "names", "examples", "maps", "matches")
    with progress("looking closer", len(steps), show) as bar:
        geometry = describe(space, evaluation.items)
        bar.advance()
        named = _named(space, data, cache)
        bar.advance()
        examples = [pick(space, evaluation.items, d) for d in evaluation.directions]
        bar.advance()
        axes, neighbours = along_axes(evaluation.items), neighbourhoods(evaluation.items)
        bar.advance()
        matches = squares(space, evaluation.items, sharpness(space.recipe, history))
        bar.advance()
    return Findings(
        run=run,
        fingerprint=fingerprint(run),
        recipe=space.recipe,
        space=space,
        data=data,
        split=split,
        history=history,
        trained=trained,
        evaluation=evaluation,
        geometry=geometry,
        transits=transits(evaluation.directions, trained),
        zero_shot=named,
        examples=examples,
        axes=axes,
        map=neighbours,
        squares=matches,
    )


def _named(space: Space, data: Manifest, cache: Cache | str) -> list[Classification]:
    """Classes named by prompts, where the rows have any."""
    if "text" not in space.modalities or len(data.counts.labels) < 2:
        return []
    try:
        return classify(space, data.rows, show=False, cache=cache).found
    except (ManifestError, UsageError):
        return []  # a file with two classes, or nothing but texts: then there is nothing to name


def read_history(run: Path) -> list[dict[str, Any]]:
    """What a run has logged, epoch by epoch; lines that are no JSON are passed over."""
    path = run / METRICS_FILE if run.is_dir() else run.parent / METRICS_FILE
    found: list[dict[str, Any]] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    found.append({k: v for k, v in entry.items() if isinstance(v, int | float) and math.isfinite(v)})
    return found


def temperatures(history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """The temperature each pair of modalities was last trained with, where its objective has one."""
    last = history[-1] if history else {}
    return {frozenset(m.groups()): float(v) for name, v in last.items() if (m := TEMPERATURE.fullmatch(name))}


def sharpness(recipe: Recipe, history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """What divides each pair's scores in training: a temperature, or the epsilon of transport; learned, else as set."""
    given = {
        frozenset(pair): float(use.settings[key])
        for use in recipe.objectives
        for key in ("temperature", "epsilon")
        if use.settings.get(key)
        for pair in use.pairs
    }
    return given | temperatures(history)


def plain(found: Findings) -> dict[str, Any]:
    """The numbers of a report as JSON can hold them."""
    numbers: dict[str, Any] = {
        "run": str(found.run),
        "space": found.fingerprint,
        "recipe": found.recipe.name,
        "data": str(found.data.path),
        "split": found.split,
        "rows": len(found.data.rows),
        "directions": [records.plain(d) for d in found.evaluation.directions],
        "geometry": asdict(found.geometry),
        "temperature": {"-".join(sorted(pair)): value for pair, value in temperatures(found.history).items()},
        "transitivity": [
            {"query": t.query, "gallery": t.gallery, "bridge": t.bridge, "kept": t.kept} for t in found.transits
        ],
        "zero_shot": [asdict(c) for c in found.zero_shot],
        "failures": {str(source): reason for source, reason in found.evaluation.failures.items()},
        "history": found.history,
    }
    return _finite(numbers)


def _finite(value: Any) -> Any:
    """The same with null for what is no number: JSON knows no infinity, such as the relative gap of two points."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def modalities(found: Findings) -> list[Modality]:
    """What was measured, in the space's order."""
    return list(found.evaluation.items)
