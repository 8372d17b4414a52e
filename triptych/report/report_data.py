"""Measure everything that a report shows: metrics, geometry, examples, projections and training history."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from triptych.checkpoint import compute_fingerprint, load
from triptych.data.manifest import Manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.classification import Classification
from triptych.evaluation.evaluate import Evaluation, evaluate
from triptych.evaluation.geometry import Geometry, describe_geometry
from triptych.evaluation.items import EvalItem, EvalItems
from triptych.evaluation.retrieval import RetrievalResult
from triptych.evaluation.transitivity import TransitiveResult, find_trained_pairs, measure_transitivity
from triptych.evaluation.zero_shot import classify
from triptych.interfaces import Modality
from triptych.progress import track_progress
from triptych.recipe import Recipe
from triptych.report.projections import MatchMatrices, Projection, compute_match_matrices, project_pca, project_tsne
from triptych.space import Space
from triptych.starter import is_starter
from triptych.training.metrics_log import read_metrics

NUM_ANSWERS = 3  # number of hits shown per example
NUM_EXAMPLES = 2  # number of good examples and of bad examples per direction
TEMPERATURE_TERM = re.compile(r"\w+\((\w+),(\w+)\).*\.temperature")


@dataclass(frozen=True)
class RetrievedItem:
    """One retrieved item."""

    item: EvalItem
    score: float
    is_positive: bool
    rank: int


@dataclass(frozen=True)
class RetrievalExample:
    """One query with its first hits and the rank of its best positive."""

    query: EvalItem
    query_modality: Modality
    gallery_modality: Modality
    rank: int
    answers: list[RetrievedItem]
    missed_positive: RetrievedItem | None  # the best positive, if it is not among the answers


@dataclass(frozen=True)
class ReportData:
    """The measurements of a run on the rows of one split."""

    run: Path
    fingerprint: str
    recipe: Recipe
    space: Space
    manifest: Manifest  # restricted to the rows that were measured
    split: str
    history: list[dict[str, Any]]  # one entry per epoch; empty for a pretrained space
    trained_pairs: set[frozenset[str]]
    evaluation: Evaluation
    geometry: Geometry
    transitivity: list[TransitiveResult]
    zero_shot: list[Classification]
    examples: list[tuple[list[RetrievalExample], list[RetrievalExample]]]  # good and bad examples of each direction
    pca: Projection
    tsne: Projection | None
    match_matrices: list[MatchMatrices]

    def is_untrained(self, direction: RetrievalResult) -> bool:
        """Return True if some modality pairs were trained, but not the pair of this direction."""
        pair = frozenset((direction.query, direction.gallery))
        return bool(self.trained_pairs) and pair not in self.trained_pairs


def collect_report_data(
    run: str | Path, table: Manifest, split: str | None = None, show_progress: bool = True
) -> ReportData:
    """Measure the space of a run on the rows of a split; split "all" selects every row."""
    space = load(run)
    split = split or space.recipe.data.test_split
    selected = table if split == "all" else table.split(split)
    history = [] if is_starter(run) else read_history(Path(run))
    trained_pairs = find_trained_pairs(space.recipe, history[-1] if history else ())
    evaluation = evaluate(space, selected.rows, show_progress)
    with track_progress("collecting the report", 5, show_progress) as progress:
        geometry = describe_geometry(space, evaluation.items)
        progress.advance()
        zero_shot = _classify_zero_shot(space, selected)
        progress.advance()
        examples = [pick_examples(space, evaluation.items, d) for d in evaluation.directions]
        progress.advance()
        pca, tsne = project_pca(evaluation.items), project_tsne(evaluation.items)
        progress.advance()
        match_matrices = compute_match_matrices(space, evaluation.items, find_score_temperatures(space.recipe, history))
        progress.advance()
    return ReportData(
        run=Path(run),
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


@torch.inference_mode()
def pick_examples(
    space: Space, items: Mapping[Modality, EvalItems], direction: RetrievalResult
) -> tuple[list[RetrievalExample], list[RetrievalExample]]:
    """Return random queries whose best positive ranks first, and the queries with the worst ranks."""
    per_query = direction.per_query
    rank, item_index, group = per_query.best_rank, per_query.item_index, per_query.group
    best = np.random.default_rng(0).permutation(np.flatnonzero(rank == 1))
    worst = np.flatnonzero(rank > NUM_ANSWERS)[np.argsort(-rank[rank > NUM_ANSWERS], kind="stable")]
    good, bad = (_select_distinct_groups(order, group) for order in (best, worst))
    examples = [_make_example(space, items, direction, int(item_index[i]), int(rank[i])) for i in (*good, *bad)]
    return examples[: len(good)], examples[len(good) :]


def _select_distinct_groups(order: np.ndarray, group: np.ndarray) -> list[int]:
    """Return the first NUM_EXAMPLES queries of different groups: no two examples are captions of one clip."""
    _, first = np.unique(group[order], return_index=True)
    return order[np.sort(first)[:NUM_EXAMPLES]].tolist()


def _make_example(
    space: Space, items: Mapping[Modality, EvalItems], direction: RetrievalResult, index: int, rank: int
) -> RetrievalExample:
    """Return the example of the query with an index, with the first NUM_ANSWERS items of the gallery as answers."""
    query_modality, gallery_modality = cast(Modality, direction.query), cast(Modality, direction.gallery)
    query_items, gallery_items = items[query_modality], items[gallery_modality]
    query = query_items.take(torch.tensor([index]))
    scores = space.scores(query, gallery_items.features)[0]
    positive_mask = gallery_items.group_ids == query_items.group_ids[index]
    first = scores.topk(min(NUM_ANSWERS, len(gallery_items))).indices.tolist()
    answers = [
        RetrievedItem(gallery_items.entries[j], float(scores[j]), bool(positive_mask[j]), position)
        for position, j in enumerate(first, start=1)
    ]
    best = int(scores.masked_fill(~positive_mask, -torch.inf).argmax())
    missed = None if best in first else RetrievedItem(gallery_items.entries[best], float(scores[best]), True, rank)
    return RetrievalExample(query_items.entries[index], query_modality, gallery_modality, rank, answers, missed)


def _classify_zero_shot(space: Space, data: Manifest) -> list[Classification]:
    """Classify by prompts. Return an empty list if the rows have fewer than two classes."""
    if "text" not in space.modalities or len(data.counts.labels) < 2:
        return []
    try:
        return classify(space, data.rows, show_progress=False).results
    except (ManifestError, UsageError):
        return []  # a file with two labels, or labelled rows without audio or image


def read_history(run: Path) -> list[dict[str, float]]:
    """Return the logged metrics of each epoch of a run, given the run folder or a file in the run folder."""
    return read_metrics(run if run.is_dir() else run.parent)


def last_temperatures(history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """Return the last logged temperature of each modality pair whose objective has one."""
    last = history[-1] if history else {}
    return {frozenset(m.groups()): float(v) for name, v in last.items() if (m := TEMPERATURE_TERM.fullmatch(name))}


def find_score_temperatures(recipe: Recipe, history: Sequence[dict[str, Any]]) -> dict[frozenset[str], float]:
    """Return the temperature or epsilon of each pair: the last logged value, or else the value in the recipe."""
    from_recipe = {
        frozenset(pair): float(objective.settings[key])
        for objective in recipe.objectives
        for key in ("temperature", "epsilon")
        if objective.settings.get(key)
        for pair in objective.pairs
    }
    return from_recipe | last_temperatures(history)


def report_to_dict(report: ReportData) -> dict[str, Any]:
    """Return the numbers of a report as JSON-compatible data."""
    document: dict[str, Any] = {
        "run": str(report.run),
        "space": report.fingerprint,
        "recipe": report.recipe.name,
        "data": str(report.manifest.path),
        "split": report.split,
        "rows": len(report.manifest.rows),
        "directions": [d.to_dict() for d in report.evaluation.directions],
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
    """Replace infinities and NaN, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
