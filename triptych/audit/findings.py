"""From what all folds say to suspects: wrong pairs, wrong captions, and pairs that only look so beside their twins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triptych.audit.judging import Arrays
from triptych.audit.pairs import Kind
from triptych.audit.share import Share, doubts, estimate_share
from triptych.contracts import Modality
from triptych.data.manifest import Row

DOUBTFUL = 0.5  # how likely wrong a suspect is, at least
TWIN = 0.95  # cosine from which two things are nearly the same
HALF = float(np.log(0.5))  # log share of its mass: a pair keeps less where the plan would rather have another

Verdict = Literal["wrong", "near-duplicate"]


@dataclass(frozen=True)
class Suspect:
    """Something that probably does not belong to its row, or a row that is nearly the same as another."""

    row: int  # number in the list of rows
    verdict: Verdict
    pair: Kind
    modality: Modality  # what does not belong
    caption: int | None  # which caption, where the others do belong
    doubt: float  # how likely it is wrong
    kept: float  # share of its mass that the plan keeps on the pair
    score: float
    better: int | None  # the row whose picture, sound or captions fit better; of a near-duplicate, its twin
    better_caption: int | None  # which of that row's captions, where it is about one
    better_score: float


@dataclass(frozen=True)
class Judged:
    """All pairs of one kind: arrays over rows and over pairs of row and caption, the share of wrong ones, doubts."""

    arrays: Arrays
    share: Share
    doubt: np.ndarray  # for each of arrays["row"]
    caption_share: Share | None  # of captions that are wrong in rows that are right; None where rows have one each
    caption_doubt: np.ndarray | None


def gather(folds: Sequence[Arrays]) -> Judged:
    """The folds of one kind of pair as one, with the share of wrong pairs and how likely each is wrong."""
    arrays = {name: np.concatenate([fold[name] for fold in folds]) for name in folds[0]}
    share = estimate_share(arrays["row.p"])
    arrays["row.fit"] = arrays["row.kept"] + arrays["row.lead"]
    doubt = doubts(arrays["row.p"], arrays["row.fit"], share.value)
    if len(arrays["pair.row"]) == len(arrays["row"]):
        return Judged(arrays, share, doubt, None, None)
    wrong = set(arrays["row"][doubt >= DOUBTFUL].tolist())
    rest = np.array([row not in wrong for row in arrays["pair.row"].tolist()])
    caption_share = estimate_share(arrays["pair.p"][rest])
    caption_doubt = np.zeros(len(rest))
    caption_doubt[rest] = doubts(arrays["pair.p"][rest], arrays["pair.kept"][rest], caption_share.value)
    return Judged(arrays, share, doubt, caption_share, caption_doubt)


def suspects(judged: Mapping[Kind, Judged], rows: Sequence[Row]) -> list[Suspect]:
    """Every suspect, the most doubtful first and near-duplicates last; of each row at most one as a whole."""
    by_row: dict[int, dict[Kind, int]] = {}
    for kind, found in judged.items():
        for i, row in enumerate(found.arrays["row"].tolist()):
            by_row.setdefault(row, {})[kind] = i
    whole = [one for row, places in by_row.items() if (one := _of_row(row, rows[row], places, judged))]
    taken = {one.row for one in whole if one.verdict == "wrong"}
    single = [one for kind, found in judged.items() for one in _captions(kind, found) if one.row not in taken]
    order = sorted(whole + single, key=lambda one: (one.verdict != "wrong", -one.doubt, one.kept, one.row))
    return [one for one in order if one.verdict == "wrong" or one.row not in taken]


def _of_row(row: int, of: Row, places: Mapping[Kind, int], judged: Mapping[Kind, Judged]) -> Suspect | None:
    """What is suspected of a row: of its kinds of pairs the most doubtful, of that the side that fits nothing else."""
    doubt = {kind: float(judged[kind].doubt[i]) for kind, i in places.items()}
    kind = max(doubt, key=lambda one: (doubt[one], -judged[one].arrays["row.kept"][places[one]]))
    found, i = judged[kind].arrays, places[kind]
    same_b = found["row.twin_b"][i] >= TWIN
    wrong = doubt[kind] >= DOUBTFUL and not same_b
    twin = found["row.kept"][i] < HALF and (same_b or found["row.twin_a"][i] >= TWIN)
    if not wrong and not (twin and found["row.twin"][i] >= 0):
        return None
    modality = _blamed(kind, doubt, of)
    forward = modality == kind[1]
    better = found["row.better" if forward else "row.other"][i] if wrong else found["row.twin"][i]
    better_score = found["row.better_score" if forward else "row.other_score"][i] if wrong else found["row.score"][i]
    return Suspect(
        row=row,
        verdict="wrong" if wrong else "near-duplicate",
        pair=kind,
        modality=modality,
        caption=None,
        doubt=doubt[kind],
        kept=float(np.exp(found["row.kept"][i])),
        score=float(found["row.score"][i]),
        better=int(better) if better != row else None,
        better_caption=None,
        better_score=float(better_score),
    )


def _blamed(kind: Kind, doubt: Mapping[Kind, float], row: Row) -> Modality:
    """The side of a pair that does not belong: the one that does not fit the row's third modality either, else b."""
    a, b = kind
    if row.video:
        return b  # sound and pictures of a film belong together
    strange = {m: sum(value for pair, value in doubt.items() if m in pair) for m in kind}
    return a if strange[a] > strange[b] else b


def _captions(kind: Kind, found: Judged) -> list[Suspect]:
    """Single captions that do not belong to a row whose others do."""
    if found.caption_doubt is None:
        return []
    arrays = found.arrays
    place = {row: i for i, row in enumerate(arrays["row"].tolist())}
    suspected = []
    for e in np.flatnonzero(found.caption_doubt >= DOUBTFUL):
        row = int(arrays["pair.row"][e])
        i = place[row]
        suspected.append(
            Suspect(
                row=row,
                verdict="wrong",
                pair=kind,
                modality=kind[1],
                caption=int(arrays["pair.caption"][e]),
                doubt=float(found.caption_doubt[e]),
                kept=float(np.exp(arrays["pair.kept"][e])),
                score=float(arrays["pair.score"][e]),
                better=int(arrays["row.caption_row"][i]),
                better_caption=int(arrays["row.caption"][i]),
                better_score=float(arrays["row.caption_score"][i]),
            )
        )
    return suspected
