"""One fold judged by the space that has not seen it: every row, every caption, and what would fit better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.audit.evidence import (
    CAPTION_BLOCK,
    Evidence,
    compute_evidence,
    compute_margins,
    find_best_alternative,
    split_into_blocks,
)
from triptych.audit.pairs import ModalityContents, ModalityPair, select_rows_with_pair
from triptych.data.cache import Cache
from triptych.interfaces import Features, Modality
from triptych.progress import track_progress
from triptych.space import Space

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class EmbeddedContents:
    """Everything the rows hold of one modality, as a space sees it."""

    contents: ModalityContents
    features: Features  # one for each content; where it could not be read, of another that could: nothing refers to it

    def take(self, indices: Sequence[int] | np.ndarray) -> Features:
        return self.features.take(torch.as_tensor(np.asarray(indices, int)))


def embed_contents(
    space: Space, contents: Mapping[Modality, ModalityContents], cache: Cache, show_progress: bool
) -> tuple[dict[Modality, EmbeddedContents], list[str]]:
    """All contents through a space; rows forget those that cannot be read, whose reasons are told."""
    embedded_contents: dict[Modality, EmbeddedContents] = {}
    reasons: list[str] = []
    for modality, modality_contents in contents.items():
        with track_progress(f"embedding {modality}", len(modality_contents.sources), show_progress) as progress:
            embedded = space.embed(
                modality_contents.sources,
                modality,
                progress=progress,
                with_parts=space.similarity.reads_parts,
                cache=cache,
            )
        reasons += embedded.failures.values()
        feature_index = np.zeros(len(modality_contents.sources), int)
        feature_index[embedded.indices] = np.arange(len(embedded.indices))
        readable = set(embedded.indices)
        readable_contents = replace(
            modality_contents, by_row=[[c for c in some if c in readable] for some in modality_contents.by_row]
        )
        embedded_contents[modality] = EmbeddedContents(
            readable_contents,
            EmbeddedContents(readable_contents, embedded.features).take(feature_index)
            if readable
            else embedded.features,
        )
    return embedded_contents, reasons


@torch.inference_mode()
def score_fold(
    space: Space,
    embedded: Mapping[Modality, EmbeddedContents],
    modality_pair: ModalityPair,
    rows: Sequence[int],
    candidate_rows: Sequence[int],
) -> Arrays:
    """What a space says of the pairs of one kind in some rows, as arrays: `row` with a value a row, `pair` with one a
    pair of a row and one of its captions. What would fit better is sought among `everything`.
    """
    a, b = modality_pair
    contents: dict[Modality, ModalityContents] = {m: embedded[m].contents for m in modality_pair}
    fold_rows, candidates = (
        select_rows_with_pair(contents, modality_pair, rows),
        select_rows_with_pair(contents, modality_pair, candidate_rows),
    )
    if not fold_rows:
        return {}
    row_evidence, caption_evidence, duplicates = list[Evidence](), list[Evidence](), list[np.ndarray]()
    for block in split_into_blocks(len(fold_rows)):
        block_evidence, block_duplicates = _compute_row_evidence(
            space, embedded[a], embedded[b], [fold_rows[i] for i in block]
        )
        row_evidence.append(block_evidence)
        duplicates.append(block_duplicates)
    is_single_caption = all(len(contents[b].by_row[row]) == 1 for row in fold_rows)
    if not is_single_caption:
        caption_blocks = (
            _compute_caption_evidence(space, embedded[a], embedded[b], [fold_rows[i] for i in block])
            for block in split_into_blocks(len(fold_rows), CAPTION_BLOCK)
        )
        caption_evidence += caption_blocks
    arrays = {
        "row": np.array(fold_rows),
        **_concat_evidence("row", row_evidence),
        **_concat_evidence("pair", row_evidence if is_single_caption else caption_evidence),
    }
    arrays["pair.row"] = np.array([row for row in fold_rows for _ in contents[b].by_row[row]])
    arrays["pair.caption"] = np.array([i for row in fold_rows for i in range(len(contents[b].by_row[row]))])
    stacked = np.concatenate(duplicates)
    arrays |= {
        "row.near_duplicate": stacked[:, 0].astype(int),
        "row.duplicate_cosine_a": stacked[:, 1],
        "row.duplicate_cosine_b": stacked[:, 2],
    }
    epsilons = np.concatenate([np.full(len(one.p_value), one.epsilon) for one in row_evidence])
    arrays["row.margin"] = _compute_row_margins(space, embedded[a], embedded[b], fold_rows, candidates) / epsilons
    return arrays | _find_alternatives(space, embedded[a], embedded[b], fold_rows, candidates)


def _compute_row_evidence(
    space: Space, a: EmbeddedContents, b: EmbeddedContents, rows: Sequence[int]
) -> tuple[Evidence, np.ndarray]:
    """The evidence on rows; and (N, 3) the row whose b the plan would rather give a row, -1 where it keeps its own, and
    how alike the two rows are in a and in b, as cosines."""
    items, item_of_row = np.unique([a.contents.by_row[row][0] for row in rows], return_inverse=True)
    sets = ContentSets(b.contents, rows)
    scores = space.scores(a.take(items), b.take(sets.contents)).float()  # (U, V)
    evidence = compute_evidence(
        sets.mean_scores(scores), torch.as_tensor(item_of_row), torch.as_tensor(sets.set_of_row)
    )
    centroids, directions = sets.centroids(b), F.normalize(a.take(items).embedding, dim=1)
    duplicates = np.tile([-1.0, 0.0, 0.0], (len(rows), 1))
    for i, other in enumerate(evidence.preferred):
        if other >= 0:
            j = int(np.flatnonzero(sets.set_of_row == other)[0])
            duplicates[i] = (
                rows[j],
                directions[item_of_row[i]] @ directions[item_of_row[j]],
                centroids[sets.set_of_row[i]] @ centroids[other],
            )
    return evidence, duplicates


def _compute_caption_evidence(space: Space, a: EmbeddedContents, b: EmbeddedContents, rows: Sequence[int]) -> Evidence:
    """The evidence on each caption of some rows by itself."""
    items, item_of_row = np.unique([a.contents.by_row[row][0] for row in rows], return_inverse=True)
    contents, content_of_caption = np.unique([c for row in rows for c in b.contents.by_row[row]], return_inverse=True)
    scores = space.scores(a.take(items), b.take(contents)).float()  # (U, V)
    counts = torch.tensor([len(b.contents.by_row[row]) for row in rows])
    return compute_evidence(
        scores, torch.as_tensor(item_of_row).repeat_interleave(counts), torch.as_tensor(content_of_caption)
    )


class ContentSets:
    """The distinct sets of contents that rows have, and how scores of contents become scores of sets: by their mean."""

    def __init__(self, content: ModalityContents, rows: Sequence[int]) -> None:
        self.sets, self.set_of_row = content.distinct_sets(rows)
        self.contents = sorted({c for one in self.sets for c in one})
        self.position = {c: i for i, c in enumerate(self.contents)}
        self._content = torch.tensor([self.position[c] for one in self.sets for c in one])
        self._set = torch.tensor([i for i, one in enumerate(self.sets) for _ in one])
        self._count = torch.tensor([len(one) for one in self.sets])

    def mean_scores(self, scores: Tensor) -> Tensor:
        """Scores against contents (N, V) to scores against sets (N, K)."""
        total = scores.new_zeros(len(scores), len(self.sets))
        return total.index_add_(1, self._set, scores[:, self._content]) / self._count

    def centroids(self, embedded: EmbeddedContents) -> Tensor:
        """Where the sets lie: the means of their contents' directions, (K, D), of length 1."""
        return F.normalize(self.mean_scores(F.normalize(embedded.take(self.contents).embedding, dim=1).T).T, dim=1)


def _compute_row_margins(
    space: Space,
    a: EmbeddedContents,
    b: EmbeddedContents,
    rows: Sequence[int],
    candidate_rows: Sequence[int],
) -> np.ndarray:
    """How far each row's b stands out, for its a, among the most similar ones of all rows: (N,), in scores."""
    sets = ContentSets(b.contents, candidate_rows)
    gallery, centroids = b.take(sets.contents), sets.centroids(b)
    index_of_row = {row: i for i, row in enumerate(candidate_rows)}
    own_sets = [int(sets.set_of_row[index_of_row[row]]) for row in rows]
    queries = [a.contents.by_row[row][0] for row in rows]
    positive_sets: dict[int, set[int]] = {}  # all that stands beside the same a anywhere
    for row, set_index in zip(candidate_rows, sets.set_of_row.tolist(), strict=True):
        positive_sets.setdefault(a.contents.by_row[row][0], set()).add(set_index)
    return compute_margins(
        lambda block: sets.mean_scores(space.scores(a.take(queries[block]), gallery).float()),
        lambda block: centroids[own_sets[block]] @ centroids.T,
        own_sets,
        [positive_sets[query] for query in queries],
    )


def _find_alternatives(
    space: Space,
    a: EmbeddedContents,
    b: EmbeddedContents,
    rows: Sequence[int],
    candidate_rows: Sequence[int],
) -> Arrays:
    """Whose b would fit each row's a better, which single caption, and whose a would fit its b better."""
    sets = ContentSets(b.contents, candidate_rows)
    gallery = b.take(sets.contents)
    index_of_row = {row: i for i, row in enumerate(candidate_rows)}
    own_index = [index_of_row[row] for row in rows]
    queries = [a.contents.by_row[row][0] for row in rows]

    def score_contents(block: slice) -> Tensor:
        return space.scores(a.take(queries[block]), gallery).float()

    items, item_of_row = np.unique([a.contents.by_row[row][0] for row in candidate_rows], return_inverse=True)
    a_gallery = a.take(items)

    def score_reverse(block: slice) -> Tensor:
        block_sets = ContentSets(b.contents, rows[block])
        scores = space.scores(a_gallery, b.take(block_sets.contents)).float()  # (items, V)
        return block_sets.mean_scores(scores).T[block_sets.set_of_row]  # (rows, items)

    own_sets = [{int(sets.set_of_row[i])} for i in own_index]
    own_contents = [{sets.position[c] for c in b.contents.by_row[row]} for row in rows]
    best_sets, best_set_scores = find_best_alternative(
        lambda block: sets.mean_scores(score_contents(block)), len(rows), own_sets
    )
    best_contents, best_content_scores = find_best_alternative(score_contents, len(rows), own_contents)
    best_items, best_item_scores = find_best_alternative(
        score_reverse, len(rows), [{int(item_of_row[i])} for i in own_index]
    )
    caption_of_content: dict[int, tuple[int, int]] = {}
    for row in candidate_rows:
        for caption_index, c in enumerate(b.contents.by_row[row]):
            caption_of_content.setdefault(c, (row, caption_index))
    best_captions = [caption_of_content[sets.contents[i]] for i in best_contents]
    return {
        "row.better_b": _first_row_per_item(sets.set_of_row, candidate_rows)[best_sets],
        "row.better_b_score": best_set_scores,
        "row.best_caption_row": np.array([row for row, _ in best_captions]),
        "row.best_caption": np.array([caption_index for _, caption_index in best_captions]),
        "row.best_caption_score": best_content_scores,
        "row.better_a": _first_row_per_item(item_of_row, candidate_rows)[best_items],
        "row.better_a_score": best_item_scores,
    }


def _first_row_per_item(item_of_row: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """The first row that has each item."""
    _, first = np.unique(item_of_row, return_index=True)
    return np.asarray(rows)[first]


def _concat_evidence(name: str, parts: Sequence[Evidence]) -> Arrays:
    fields = ("score", "p_value", "log_retained_mass")
    return {f"{name}.{field}": np.concatenate([getattr(part, field) for part in parts]) for field in fields}
