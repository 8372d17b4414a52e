"""One fold judged by the space that has not seen it: every row, every caption, and what would fit better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.audit.evidence import SINGLES, Evidence, best_other, blocks, leads, weigh
from triptych.audit.pairs import Content, Kind, of_kind
from triptych.contracts import Features, Modality
from triptych.data.cache import Cache
from triptych.progress import progress
from triptych.space import Space

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Seen:
    """Everything the rows hold of one modality, as a space sees it."""

    content: Content
    features: Features  # one for each content; where it could not be read, of another that could: nothing refers to it

    def some(self, places: Sequence[int] | np.ndarray) -> Features:
        index = torch.as_tensor(np.asarray(places, int))
        return Features(self.features.embedding[index], self.features.parts[index], self.features.mask[index])


def see(
    space: Space, held: Mapping[Modality, Content], cache: Cache, show: bool
) -> tuple[dict[Modality, Seen], list[str]]:
    """All contents through a space; rows forget those that cannot be read, whose reasons are told."""
    found: dict[Modality, Seen] = {}
    reasons: list[str] = []
    for modality, content in held.items():
        with progress(f"embedding {modality}", len(content.sources), show) as bar:
            embedded = space.embed(content.sources, modality, bar=bar, parts=space.similarity.reads_parts, cache=cache)
        reasons += embedded.failures.values()
        place = np.zeros(len(content.sources), int)
        place[embedded.read] = np.arange(len(embedded.read))
        readable = set(embedded.read)
        kept = replace(content, of_row=[[c for c in some if c in readable] for some in content.of_row])
        found[modality] = Seen(kept, Seen(kept, embedded.features).some(place) if readable else embedded.features)
    return found, reasons


@torch.inference_mode()
def judge(
    space: Space, seen: Mapping[Modality, Seen], kind: Kind, rows: Sequence[int], everything: Sequence[int]
) -> Arrays:
    """What a space says of the pairs of one kind in some rows, as arrays: `row` with a value a row, `pair` with one a
    pair of a row and one of its captions. What would fit better is sought among `everything`.
    """
    a, b = kind
    held: dict[Modality, Content] = {m: seen[m].content for m in kind}
    mine, all_rows = of_kind(held, kind, rows), of_kind(held, kind, everything)
    if not mine:
        return {}
    evidence, captions, twins = list[Evidence](), list[Evidence](), list[np.ndarray]()
    for block in blocks(len(mine)):
        whole, twin = _weigh_rows(space, seen[a], seen[b], kind, [mine[i] for i in block])
        evidence.append(whole)
        twins.append(twin)
    single = all(len(held[b].of_row[row]) == 1 for row in mine)
    if not single:
        parts = (
            _weigh_captions(space, seen[a], seen[b], kind, [mine[i] for i in block])
            for block in blocks(len(mine), SINGLES)
        )
        captions += parts
    arrays = {"row": np.array(mine), **_joined("row", evidence), **_joined("pair", evidence if single else captions)}
    arrays["pair.row"] = np.array([row for row in mine for _ in held[b].of_row[row]])
    arrays["pair.caption"] = np.array([i for row in mine for i in range(len(held[b].of_row[row]))])
    together = np.concatenate(twins)
    arrays |= {"row.twin": together[:, 0].astype(int), "row.twin_a": together[:, 1], "row.twin_b": together[:, 2]}
    units = np.concatenate([np.full(len(one.p), one.epsilon) for one in evidence])
    arrays["row.lead"] = _leads(space, seen[a], seen[b], kind, mine, all_rows) / units
    return arrays | _proposals(space, seen[a], seen[b], kind, mine, all_rows)


def _weigh_rows(space: Space, a: Seen, b: Seen, kind: Kind, rows: Sequence[int]) -> tuple[Evidence, np.ndarray]:
    """The evidence on rows; and (N, 3) the row whose b the plan would rather give a row, -1 where it keeps its own, and
    how alike the two rows are in a and in b, as cosines."""
    items, own_a = np.unique([a.content.of_row[row][0] for row in rows], return_inverse=True)
    means = Means(b.content, rows)
    scores = space.scores(a.some(items), kind[0], b.some(means.contents), kind[1]).float()  # (U, V)
    whole = weigh(means.over(scores), torch.as_tensor(own_a), torch.as_tensor(means.of_row))
    middle, unit = means.middle(b), F.normalize(a.some(items).embedding, dim=1)
    twins = np.tile([-1.0, 0.0, 0.0], (len(rows), 1))
    for i, other in enumerate(whole.elsewhere):
        if other >= 0:
            j = int(np.flatnonzero(means.of_row == other)[0])
            twins[i] = rows[j], unit[own_a[i]] @ unit[own_a[j]], middle[means.of_row[i]] @ middle[other]
    return whole, twins


def _weigh_captions(space: Space, a: Seen, b: Seen, kind: Kind, rows: Sequence[int]) -> Evidence:
    """The evidence on each caption of some rows by itself."""
    items, own_a = np.unique([a.content.of_row[row][0] for row in rows], return_inverse=True)
    contents, own_b = np.unique([c for row in rows for c in b.content.of_row[row]], return_inverse=True)
    scores = space.scores(a.some(items), kind[0], b.some(contents), kind[1]).float()  # (U, V)
    counts = torch.tensor([len(b.content.of_row[row]) for row in rows])
    return weigh(scores, torch.as_tensor(own_a).repeat_interleave(counts), torch.as_tensor(own_b))


class Means:
    """The distinct sets of contents that rows have, and how scores of contents become scores of sets: by their mean."""

    def __init__(self, content: Content, rows: Sequence[int]) -> None:
        self.sets, self.of_row = content.sets(rows)
        self.contents = sorted({c for one in self.sets for c in one})
        self.position = {c: i for i, c in enumerate(self.contents)}
        self._content = torch.tensor([self.position[c] for one in self.sets for c in one])
        self._set = torch.tensor([i for i, one in enumerate(self.sets) for _ in one])
        self._count = torch.tensor([len(one) for one in self.sets])

    def over(self, scores: Tensor) -> Tensor:
        """Scores against contents (N, V) to scores against sets (N, K)."""
        total = scores.new_zeros(len(scores), len(self.sets))
        return total.index_add_(1, self._set, scores[:, self._content]) / self._count

    def middle(self, seen: Seen) -> Tensor:
        """Where the sets lie: the means of their contents' directions, (K, D), of length 1."""
        return F.normalize(self.over(F.normalize(seen.some(self.contents).embedding, dim=1).T).T, dim=1)


def _leads(space: Space, a: Seen, b: Seen, kind: Kind, rows: Sequence[int], everything: Sequence[int]) -> np.ndarray:
    """How far each row's b stands out, for its a, among the most similar ones of all rows: (N,), in scores."""
    means = Means(b.content, everything)
    gallery, middle = b.some(means.contents), means.middle(b)
    place = {row: i for i, row in enumerate(everything)}
    own = [int(means.of_row[place[row]]) for row in rows]
    queries = [a.content.of_row[row][0] for row in rows]
    belongs: dict[int, set[int]] = {}  # all that stands beside the same a anywhere
    for row, of_row in zip(everything, means.of_row.tolist(), strict=True):
        belongs.setdefault(a.content.of_row[row][0], set()).add(of_row)
    return leads(
        lambda block: means.over(space.scores(a.some(queries[block]), kind[0], gallery, kind[1]).float()),
        lambda block: middle[own[block]] @ middle.T,
        own,
        [belongs[query] for query in queries],
    )


def _proposals(space: Space, a: Seen, b: Seen, kind: Kind, rows: Sequence[int], everything: Sequence[int]) -> Arrays:
    """Whose b would fit each row's a better, which single caption, and whose a would fit its b better."""
    means = Means(b.content, everything)
    gallery = b.some(means.contents)
    place = {row: i for i, row in enumerate(everything)}
    own = [place[row] for row in rows]
    queries = [a.content.of_row[row][0] for row in rows]

    def singly(block: slice) -> Tensor:
        return space.scores(a.some(queries[block]), kind[0], gallery, kind[1]).float()

    items, own_a = np.unique([a.content.of_row[row][0] for row in everything], return_inverse=True)
    shelf = a.some(items)

    def backwards(block: slice) -> Tensor:
        mine = Means(b.content, rows[block])
        scores = space.scores(shelf, kind[0], b.some(mine.contents), kind[1]).float()  # (items, V)
        return mine.over(scores).T[mine.of_row]  # (rows, items)

    own_sets = [{int(means.of_row[i])} for i in own]
    own_contents = [{means.position[c] for c in b.content.of_row[row]} for row in rows]
    better, better_score = best_other(lambda block: means.over(singly(block)), len(rows), own_sets)
    caption, caption_score = best_other(singly, len(rows), own_contents)
    other, other_score = best_other(backwards, len(rows), [{int(own_a[i])} for i in own])
    carrier: dict[int, tuple[int, int]] = {}
    for row in everything:
        for number, c in enumerate(b.content.of_row[row]):
            carrier.setdefault(c, (row, number))
    carried = [carrier[means.contents[i]] for i in caption]
    return {
        "row.better": _owners(means.of_row, everything)[better],
        "row.better_score": better_score,
        "row.caption_row": np.array([row for row, _ in carried]),
        "row.caption": np.array([number for _, number in carried]),
        "row.caption_score": caption_score,
        "row.other": _owners(own_a, everything)[other],
        "row.other_score": other_score,
    }


def _owners(item_of_row: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """The first row that has each item."""
    _, first = np.unique(item_of_row, return_index=True)
    return np.asarray(rows)[first]


def _joined(name: str, parts: Sequence[Evidence]) -> Arrays:
    fields = ("score", "p", "kept")
    return {f"{name}.{field}": np.concatenate([getattr(part, field) for part in parts]) for field in fields}
