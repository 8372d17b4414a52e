"""Everything a report tells, measured and gathered before a line of it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.checkpoint import compute_fingerprint, load
from triptych.data.cache import Cache
from triptych.data.manifest import Manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation import result_files
from triptych.evaluation.classification import Classification
from triptych.evaluation.evaluate import Evaluation, evaluate
from triptych.evaluation.geometry import Geometry, describe_geometry
from triptych.evaluation.transitivity import TransitiveResult, find_trained_pairs, measure_transitivity
from triptych.evaluation.zero_shot import classify
from triptych.interfaces import Modality
from triptych.progress import track_progress
from triptych.recipe import Recipe
from triptych.report.examples import RetrievalExample, pick_examples
from triptych.report.projections import MatchMatrices, Projection, compute_match_matrices, project_pca, project_tsne
from triptych.space import Space
from triptych.training.metrics_log import read_metrics

TEMPERATURE_TERM = re.compile(r"\w+\((\w+),(\w+)\).*\.temperature")


@dataclass(frozen=True)
class ReportData:
    """What is known of a run, on some rows."""

    run: Path
    fingerprint: str
    recipe: Recipe
    space: Space
    manifest: Manifest  # only the rows that were measured
    split: str
    history: list[dict[str, Any]]  # of training, an entry an epoch; empty for a space that was not trained here
    trained_pairs: set[frozenset[str]]
    evaluation: Evaluation
    geometry: Geometry
    transitivity: list[TransitiveResult]
    zero_shot: list[Classification]
    examples: list[tuple[list[RetrievalExample], list[RetrievalExample]]]  # good and bad, of each direction
    pca: Projection
    tsne: Projection | None
    match_matrices: list[MatchMatrices]


def collect_report_data(
    run: Path, table: Manifest, split: str | None = None, show_progress: bool = True, cache: Cache | str = ""
) -> ReportData:
    """Measure a space on the rows of a split ("all" for all of them), and find what to show of it."""
    space = load(run)
    split = split or space.recipe.data.test_split
    selected = table if split == "all" else table.split(split)
    history = read_history(run)
    trained_pairs = find_trained_pairs(space.recipe, history[-1] if history else ())
    evaluation = evaluate(space, selected.rows, show_progress, cache)
    steps = ("shape", "names", "examples", "maps", "matches")
    with track_progress("looking closer", len(steps), show_progress) as progress:
        geometry = describe_geometry(space, evaluation.items)
        progress.advance()
        zero_shot = _classify_zero_shot(space, selected, cache)
        progress.advance()
        examples = [pick_examples(space, evaluation.items, d) for d in evaluation.directions]
        progress.advance()
        pca, tsne = project_pca(evaluation.items), project_tsne(evaluation.items)
        progress.advance()
        match_matrices = compute_match_matrices(space, evaluation.items, find_score_temperatures(space.recipe, history))
        progress.advance()
    return ReportData(
        run=run,
        fingerprint=compute_fingerprint(run),
        recipe=space.recipe,
        space=space,
        manifest=selected,
        split=split,
        history=history,
        trained_pairs=trained_pairs,
        evaluation=evaluation,
        geometry=geometry,
        transitivity=measure_transitivity(evaluation.directions, trained_pairs),
        zero_shot=zero_shot,
        examples=examples,
        pca=pca,
        tsne=tsne,
        match_matrices=match_matrices,
    )


def _classify_zero_shot(space: Space, data: Manifest, cache: Cache | str) -> list[Classification]:
    """Classes named by prompts, where the rows have any."""
    if "text" not in space.modalities or len(data.counts.labels) < 2:
        return []
    try:
        return classify(space, data.rows, show_progress=False, cache=cache).results
    except (ManifestError, UsageError):
        return []  # a file with two classes, or nothing but texts: then there is nothing to name


def read_history(run: Path) -> list[dict[str, float]]:
    """Return the metrics of a run epoch by epoch, given its folder or a file in it."""
    return read_metrics(run if run.is_dir() else run.parent)


def last_temperatures(history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """The temperature each pair of modalities was last trained with, where its objective has one."""
    last = history[-1] if history else {}
    return {frozenset(m.groups()): float(v) for name, v in last.items() if (m := TEMPERATURE_TERM.fullmatch(name))}


def find_score_temperatures(recipe: Recipe, history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """What divides each pair's scores in training: a temperature, or the epsilon of transport; learned, else as set."""
    from_recipe = {
        frozenset(pair): float(objective.settings[key])
        for objective in recipe.objectives
        for key in ("temperature", "epsilon")
        if objective.settings.get(key)
        for pair in objective.pairs
    }
    return from_recipe | last_temperatures(history)


def report_to_dict(report: ReportData) -> dict[str, Any]:
    """The numbers of a report as JSON can hold them."""
    document: dict[str, Any] = {
        "run": str(report.run),
        "space": report.fingerprint,
        "recipe": report.recipe.name,
        "data": str(report.manifest.path),
        "split": report.split,
        "rows": len(report.manifest.rows),
        "directions": [result_files.retrieval_to_dict(d) for d in report.evaluation.directions],
        "geometry": asdict(report.geometry),
        "temperature": {"-".join(sorted(pair)): value for pair, value in last_temperatures(report.history).items()},
        "transitivity": [
            {"query": t.query, "gallery": t.gallery, "bridge": t.bridge, "retention": t.retention}
            for t in report.transitivity
        ],
        "zero_shot": [asdict(c) for c in report.zero_shot],
        "failures": {str(source): reason for source, reason in report.evaluation.failures.items()},
        "history": report.history,
    }
    return _replace_non_finite(document)


def _replace_non_finite(value: Any) -> Any:
    """The same with null for what is no number: JSON knows no infinity, such as the relative gap of two points."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def list_modalities(report: ReportData) -> list[Modality]:
    """What was measured, in the space's order."""
    return list(report.evaluation.items)
