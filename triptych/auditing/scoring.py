"""Score the rows of one fold with a space that was not trained on these rows: evidence, duplicates, alternatives."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from triptych.auditing.evidence import (
    CAPTION_BLOCK,
    Evidence,
    compute_evidence,
    compute_margins,
    find_best_alternative,
    split_into_blocks,
)
from triptych.auditing.folds import MODALITY_PAIRS, Contents, ModalityContents, ModalityPair, select_rows_with_pair
from triptych.data.cache import Cache
from triptych.evaluation.items import embed_sources
from triptych.files import atomic_write
from triptych.interfaces import Features, Modality
from triptych.space import Space


@dataclass(frozen=True)
class RowScores:
    """Scores (N,) of N rows for one modality pair, averaged over the captions of each row.

    Item `a` of a row is its file of the first modality. Item `b` is its captions (or its file) of the second modality.
    """

    row: np.ndarray  # index of the row in the manifest
    score: np.ndarray
    p_value: np.ndarray
    log_retained_mass: np.ndarray
    margin: np.ndarray  # in units of the plan's epsilon
    near_duplicate: np.ndarray  # the row whose item `b` the plan prefers for this row's item `a`; -1 if there is none
    duplicate_cosine_a: np.ndarray  # cosine similarity of the items `a` of the two near-duplicate rows
    duplicate_cosine_b: np.ndarray  # cosine similarity of their items `b`
    better_a: np.ndarray  # the row whose item `a` fits this row's item `b` best
    better_a_score: np.ndarray
    better_b: np.ndarray  # the row whose item `b` fits this row's item `a` best
    better_b_score: np.ndarray
    best_caption_row: np.ndarray  # the row of the single caption that fits this row's item `a` best
    best_caption: np.ndarray  # index of that caption in best_caption_row
    best_caption_score: np.ndarray

    @property
    def fit_score(self) -> np.ndarray:
        """How well item `a` and item `b` of each row fit: log retained mass + margin."""
        return self.log_retained_mass + self.margin


@dataclass(frozen=True)
class CaptionScores:
    """Scores of each single caption of the rows (or of each file, if the second modality is not text)."""

    row: np.ndarray
    score: np.ndarray
    p_value: np.ndarray
    log_retained_mass: np.ndarray
    caption: np.ndarray  # index of the caption in its row


@dataclass(frozen=True)
class FoldScores:
    """The scores of one modality pair in one fold."""

    rows: RowScores
    captions: CaptionScores


Scores = TypeVar("Scores", RowScores, CaptionScores)


def concat_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of several folds field by field."""
    arrays = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(parts[0])}
    return type(parts[0])(**arrays)


@dataclass(frozen=True)
class EmbeddedContents:
    """The contents of one modality with their features."""

    contents: ModalityContents
    features: Features  # one item per content; an unreadable content, which no row contains, has arbitrary features

    def take(self, indices: Sequence[int] | np.ndarray) -> Features:
        """Return the features of the contents with these indices."""
        return self.features.take(torch.as_tensor(np.asarray(indices, int)))


def embed_contents(
    space: Space, contents: Contents, cache: Cache, show_progress: bool
) -> tuple[dict[Modality, EmbeddedContents], list[str]]:
    """Embed all contents. Remove unreadable contents from their rows, and return the error messages."""
    embedded_contents: dict[Modality, EmbeddedContents] = {}
    reasons: list[str] = []
    for modality, modality_contents in contents.items():
        embedded = embed_sources(space, modality_contents.sources, modality, show_progress, cache)
        reasons += embedded.failures.values()
        readable = set(embedded.indices)
        by_row = [[c for c in row if c in readable] for row in modality_contents.by_row]
        result = EmbeddedContents(replace(modality_contents, by_row=by_row), embedded.features)
        if readable:
            feature_index = np.zeros(len(modality_contents.sources), int)
            feature_index[embedded.indices] = np.arange(len(embedded.indices))
            result = replace(result, features=result.take(feature_index))
        embedded_contents[modality] = result
    return embedded_contents, reasons


@torch.inference_mode()
def score_fold(
    space: Space,
    embedded: Mapping[Modality, EmbeddedContents],
    modality_pair: ModalityPair,
    rows: Sequence[int],
    candidate_rows: Sequence[int],
) -> FoldScores | None:
    """Score rows for one modality pair. Return None if no row has both modalities.

    Better alternatives are taken from the candidate rows.
    """
    contents: dict[Modality, ModalityContents] = {m: embedded[m].contents for m in modality_pair}
    rows = select_rows_with_pair(contents, modality_pair, rows)
    candidates = select_rows_with_pair(contents, modality_pair, candidate_rows)
    if not rows:
        return None
    scorer = _PairScorer(space, embedded[modality_pair[0]], embedded[modality_pair[1]])
    blocks = [scorer.compute_row_evidence([rows[i] for i in block]) for block in split_into_blocks(len(rows))]
    row_evidence, duplicates = [evidence for evidence, _ in blocks], np.concatenate([block for _, block in blocks])
    captions_by_row = contents[modality_pair[1]].by_row
    caption_evidence = row_evidence
    if any(len(captions_by_row[row]) != 1 for row in rows):
        blocks = split_into_blocks(len(rows), CAPTION_BLOCK)
        caption_evidence = [scorer.compute_caption_evidence([rows[i] for i in block]) for block in blocks]
    epsilons = np.concatenate([np.full(len(evidence.p_value), evidence.epsilon) for evidence in row_evidence])
    row_scores = RowScores(
        row=np.array(rows),
        **_concat_evidence(row_evidence),
        margin=scorer.compute_margins(rows, candidates) / epsilons,
        near_duplicate=duplicates[:, 0].astype(int),
        duplicate_cosine_a=duplicates[:, 1],
        duplicate_cosine_b=duplicates[:, 2],
        **scorer.find_alternatives(rows, candidates),
    )
    caption_scores = CaptionScores(
        row=np.array([row for row in rows for _ in captions_by_row[row]]),
        **_concat_evidence(caption_evidence),
        caption=np.array([i for row in rows for i in range(len(captions_by_row[row]))]),
    )
    return FoldScores(row_scores, caption_scores)


def _concat_evidence(parts: Sequence[Evidence]) -> dict[str, np.ndarray]:
    names = ("score", "p_value", "log_retained_mass")
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}


class ContentSets:
    """The distinct sets of captions (or files) of some rows. The score of a set is the mean score of its members."""

    def __init__(self, contents: ModalityContents, rows: Sequence[int]) -> None:
        self.sets, self.set_of_row = contents.distinct_sets(rows)
        self.contents = sorted({c for members in self.sets for c in members})
        self.position = {c: i for i, c in enumerate(self.contents)}
        self._content = torch.tensor([self.position[c] for members in self.sets for c in members])
        self._set = torch.tensor([i for i, members in enumerate(self.sets) for _ in members])
        self._count = torch.tensor([len(members) for members in self.sets])

    def mean_scores(self, scores: Tensor) -> Tensor:
        """Convert scores against single captions (N, V) to scores against sets (N, K)."""
        total = scores.new_zeros(len(scores), len(self.sets))
        return total.index_add_(1, self._set, scores[:, self._content]) / self._count

    def centroids(self, embedded: EmbeddedContents) -> Tensor:
        """Return the normalised mean of the unit embeddings in each set: (K, D)."""
        return F.normalize(self.mean_scores(F.normalize(embedded.take(self.contents).embedding, dim=1).T).T, dim=1)


@dataclass(frozen=True)
class _PairScorer:
    """Score rows with a space. Items `a` and `b` of a row are defined in `RowScores`."""

    space: Space
    a: EmbeddedContents
    b: EmbeddedContents

    def scores(self, a: Features, b: Features) -> Tensor:
        return self.space.scores(a, b).float()

    def a_of_rows(self, rows: Sequence[int]) -> list[int]:
        return [self.a.contents.by_row[row][0] for row in rows]

    def compute_row_evidence(self, rows: Sequence[int]) -> tuple[Evidence, np.ndarray]:
        """Return the evidence on rows, and (N, 3): near_duplicate, duplicate_cosine_a and duplicate_cosine_b."""
        items, item_of_row = np.unique(self.a_of_rows(rows), return_inverse=True)
        sets = ContentSets(self.b.contents, rows)
        scores = sets.mean_scores(self.scores(self.a.take(items), self.b.take(sets.contents)))  # (U, V)
        evidence = compute_evidence(scores, torch.as_tensor(item_of_row), torch.as_tensor(sets.set_of_row))
        centroids, directions = sets.centroids(self.b), F.normalize(self.a.take(items).embedding, dim=1)
        duplicates = np.tile([-1.0, 0.0, 0.0], (len(rows), 1))
        for i, other in enumerate(evidence.preferred):
            if other >= 0:
                j = int(np.flatnonzero(sets.set_of_row == other)[0])
                cosine_a = directions[item_of_row[i]] @ directions[item_of_row[j]]
                duplicates[i] = rows[j], cosine_a, centroids[sets.set_of_row[i]] @ centroids[other]
        return evidence, duplicates

    def compute_caption_evidence(self, rows: Sequence[int]) -> Evidence:
        """Return the evidence on each single caption of the rows."""
        by_row = self.b.contents.by_row
        items, item_of_row = np.unique(self.a_of_rows(rows), return_inverse=True)
        contents, content_of_caption = np.unique([c for row in rows for c in by_row[row]], return_inverse=True)
        scores = self.scores(self.a.take(items), self.b.take(contents))  # (U, V)
        counts = torch.tensor([len(by_row[row]) for row in rows])
        item_of_caption = torch.as_tensor(item_of_row).repeat_interleave(counts)
        return compute_evidence(scores, item_of_caption, torch.as_tensor(content_of_caption))

    def compute_margins(self, rows: Sequence[int], candidate_rows: Sequence[int]) -> np.ndarray:
        """Return the margin (N,) of each row's caption set over the most similar caption sets of the candidate rows."""
        sets = ContentSets(self.b.contents, candidate_rows)
        gallery, centroids = self.b.take(sets.contents), sets.centroids(self.b)
        own_sets = _select_by_row(sets.set_of_row, candidate_rows, rows)
        queries = self.a_of_rows(rows)
        # For each distinct item `a`, collect the caption sets of the rows that contain it.
        positive_sets: dict[int, set[int]] = {}
        for query, set_index in zip(self.a_of_rows(candidate_rows), sets.set_of_row.tolist(), strict=True):
            positive_sets.setdefault(query, set()).add(set_index)
        return compute_margins(
            lambda block: sets.mean_scores(self.scores(self.a.take(queries[block]), gallery)),
            lambda block: centroids[own_sets[block]] @ centroids.T,
            own_sets,
            [positive_sets[query] for query in queries],
        )

    def find_alternatives(self, rows: Sequence[int], candidate_rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Find for each row the best caption set and caption for item `a`, and the best item `a` for item `b`."""
        sets = ContentSets(self.b.contents, candidate_rows)
        gallery, queries, by_row = self.b.take(sets.contents), self.a_of_rows(rows), self.b.contents.by_row
        items, item_of_row = np.unique(self.a_of_rows(candidate_rows), return_inverse=True)
        a_gallery = self.a.take(items)

        def score_contents(block: slice) -> Tensor:
            return self.scores(self.a.take(queries[block]), gallery)

        def score_reverse(block: slice) -> Tensor:
            block_sets = ContentSets(self.b.contents, rows[block])
            scores = self.scores(a_gallery, self.b.take(block_sets.contents))  # (items, V)
            return block_sets.mean_scores(scores).T[block_sets.set_of_row]  # (rows, items)

        own_sets = [{i} for i in _select_by_row(sets.set_of_row, candidate_rows, rows)]
        own_contents = [{sets.position[c] for c in by_row[row]} for row in rows]
        own_items = [{i} for i in _select_by_row(item_of_row, candidate_rows, rows)]
        find_best = partial(find_best_alternative, num_queries=len(rows))
        best_sets, set_scores = find_best(lambda block: sets.mean_scores(score_contents(block)), own_items=own_sets)
        best_contents, content_scores = find_best(score_contents, own_items=own_contents)
        best_items, item_scores = find_best(score_reverse, own_items=own_items)
        caption_of_content: dict[int, tuple[int, int]] = {}
        for row in candidate_rows:
            for caption, c in enumerate(by_row[row]):
                caption_of_content.setdefault(c, (row, caption))
        best_captions = np.array([caption_of_content[sets.contents[i]] for i in best_contents])
        return {
            "better_a": _first_rows(item_of_row, candidate_rows)[best_items],
            "better_a_score": item_scores,
            "better_b": _first_rows(sets.set_of_row, candidate_rows)[best_sets],
            "better_b_score": set_scores,
            "best_caption_row": best_captions[:, 0],
            "best_caption": best_captions[:, 1],
            "best_caption_score": content_scores,
        }


def _select_by_row(values: np.ndarray, candidate_rows: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return the values of `rows`, given one value per candidate row."""
    index_of_row = {row: i for i, row in enumerate(candidate_rows)}
    return [int(values[index_of_row[row]]) for row in rows]


def _first_rows(item_of_row: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Return, for each distinct item, the first row that contains it."""
    return np.asarray(rows)[np.unique(item_of_row, return_index=True)[1]]


def write_fold(file: Path, scores_by_pair: Mapping[ModalityPair, FoldScores], reasons: Sequence[str]) -> None:
    """Write the scores of a fold, and the error messages of unreadable files."""
    # safetensors writes the raw memory of an array, so the arrays must be contiguous.
    tensors = {
        f"{a}-{b}/{level.name}/{f.name}": np.ascontiguousarray(getattr(getattr(scores, level.name), f.name))
        for (a, b), scores in scores_by_pair.items()
        for level in fields(FoldScores)
        for f in fields(getattr(scores, level.name))
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_bytes(save(tensors, metadata={"unreadable": json.dumps(list(reasons))}))


def read_fold(file: Path) -> tuple[dict[ModalityPair, FoldScores], list[str]] | None:
    """Read a file written by `write_fold`. Return None if the file is missing or damaged."""
    if not file.is_file():
        return None
    arrays: dict[ModalityPair, dict[str, dict[str, Any]]] = {}
    try:
        with safe_open(file, "numpy") as opened:
            reasons = json.loads((opened.metadata() or {})["unreadable"])
            for key in opened.keys():  # noqa: SIM118 - not a dict
                pair, level, name = key.split("/")
                levels = arrays.setdefault(MODALITY_PAIRS[pair], {"rows": {}, "captions": {}})
                levels[level][name] = opened.get_tensor(key)
        scores = {
            pair: FoldScores(RowScores(**levels["rows"]), CaptionScores(**levels["captions"]))
            for pair, levels in arrays.items()
        }
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return scores, reasons
