"""From what all folds say to suspects: wrong pairs, wrong captions, and pairs that only look so beside their twins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triptych.audit.pairs import ModalityPair
from triptych.audit.scoring import Arrays
from triptych.audit.share import NoiseRateEstimate, estimate_noise_rate, estimate_p_wrong
from triptych.data.manifest import Row
from triptych.interfaces import Modality

P_WRONG_THRESHOLD = 0.5  # how likely wrong a suspect is, at least
DUPLICATE_COSINE = 0.95  # cosine from which two things are nearly the same
LOG_HALF = float(np.log(0.5))  # log share of its mass: a pair keeps less where the plan would rather have another

Verdict = Literal["wrong", "near-duplicate"]


@dataclass(frozen=True)
class Suspect:
    """Something that probably does not belong to its row, or a row that is nearly the same as another."""

    row: int  # number in the list of rows
    verdict: Verdict
    modality_pair: ModalityPair
    modality: Modality  # what does not belong
    caption: int | None  # which caption, where the others do belong
    p_wrong: float  # how likely it is wrong
    retained_mass: float  # share of its mass that the plan keeps on the pair
    score: float
    better_row: int | None  # the row whose picture, sound or captions fit better; of a near-duplicate, its twin
    better_caption: int | None  # which of that row's captions, where it is about one
    better_score: float


@dataclass(frozen=True)
class PairScores:
    """All pairs of one kind: arrays over rows and over pairs of row and caption, the share of wrong ones, doubts."""

    arrays: Arrays
    noise_rate: NoiseRateEstimate
    p_wrong: np.ndarray  # for each of arrays["row"]
    caption_noise_rate: (
        NoiseRateEstimate | None
    )  # of captions that are wrong in rows that are right; None where rows have one each
    caption_p_wrong: np.ndarray | None


def merge_folds(folds: Sequence[Arrays]) -> PairScores:
    """The folds of one kind of pair as one, with the share of wrong pairs and how likely each is wrong."""
    arrays = {name: np.concatenate([fold[name] for fold in folds]) for name in folds[0]}
    noise_rate = estimate_noise_rate(arrays["row.p_value"])
    arrays["row.fit_score"] = arrays["row.log_retained_mass"] + arrays["row.margin"]
    p_wrong = estimate_p_wrong(arrays["row.p_value"], arrays["row.fit_score"], noise_rate.value)
    if len(arrays["pair.row"]) == len(arrays["row"]):
        return PairScores(arrays, noise_rate, p_wrong, None, None)
    wrong_rows = set(arrays["row"][p_wrong >= P_WRONG_THRESHOLD].tolist())
    in_right_row = np.array([row not in wrong_rows for row in arrays["pair.row"].tolist()])
    caption_noise_rate = estimate_noise_rate(arrays["pair.p_value"][in_right_row])
    caption_p_wrong = np.zeros(len(in_right_row))
    caption_p_wrong[in_right_row] = estimate_p_wrong(
        arrays["pair.p_value"][in_right_row], arrays["pair.log_retained_mass"][in_right_row], caption_noise_rate.value
    )
    return PairScores(arrays, noise_rate, p_wrong, caption_noise_rate, caption_p_wrong)


def find_suspects(pair_scores: Mapping[ModalityPair, PairScores], rows: Sequence[Row]) -> list[Suspect]:
    """Every suspect, the most doubtful first and near-duplicates last; of each row at most one as a whole."""
    by_row: dict[int, dict[ModalityPair, int]] = {}
    for modality_pair, scores in pair_scores.items():
        for i, row in enumerate(scores.arrays["row"].tolist()):
            by_row.setdefault(row, {})[modality_pair] = i
    row_suspects = [
        one for row, places in by_row.items() if (one := _find_row_suspect(row, rows[row], places, pair_scores))
    ]
    wrong_rows = {one.row for one in row_suspects if one.verdict == "wrong"}
    caption_suspects = [
        one
        for modality_pair, scores in pair_scores.items()
        for one in _find_caption_suspects(modality_pair, scores)
        if one.row not in wrong_rows
    ]
    ordered = sorted(
        row_suspects + caption_suspects,
        key=lambda one: (one.verdict != "wrong", -one.p_wrong, one.retained_mass, one.row),
    )
    return [one for one in ordered if one.verdict == "wrong" or one.row not in wrong_rows]


def _find_row_suspect(
    row: int,
    manifest_row: Row,
    index_by_pair: Mapping[ModalityPair, int],
    pair_scores: Mapping[ModalityPair, PairScores],
) -> Suspect | None:
    """What is suspected of a row: of its kinds of pairs the most doubtful, of that the side that fits nothing else."""
    doubt = {kind: float(pair_scores[kind].p_wrong[i]) for kind, i in index_by_pair.items()}
    kind = max(
        doubt, key=lambda one: (doubt[one], -pair_scores[one].arrays["row.log_retained_mass"][index_by_pair[one]])
    )
    arrays, i = pair_scores[kind].arrays, index_by_pair[kind]
    is_b_duplicate = arrays["row.duplicate_cosine_b"][i] >= DUPLICATE_COSINE
    is_wrong = doubt[kind] >= P_WRONG_THRESHOLD and not is_b_duplicate
    is_near_duplicate = arrays["row.log_retained_mass"][i] < LOG_HALF and (
        is_b_duplicate or arrays["row.duplicate_cosine_a"][i] >= DUPLICATE_COSINE
    )
    if not is_wrong and not (is_near_duplicate and arrays["row.near_duplicate"][i] >= 0):
        return None
    modality = _find_side_at_fault(kind, doubt, manifest_row)
    is_b_at_fault = modality == kind[1]
    better_row = (
        arrays["row.better_b" if is_b_at_fault else "row.better_a"][i] if is_wrong else arrays["row.near_duplicate"][i]
    )
    better_score = (
        arrays["row.better_b_score" if is_b_at_fault else "row.better_a_score"][i]
        if is_wrong
        else arrays["row.score"][i]
    )
    return Suspect(
        row=row,
        verdict="wrong" if is_wrong else "near-duplicate",
        modality_pair=kind,
        modality=modality,
        caption=None,
        p_wrong=doubt[kind],
        retained_mass=float(np.exp(arrays["row.log_retained_mass"][i])),
        score=float(arrays["row.score"][i]),
        better_row=int(better_row) if better_row != row else None,
        better_caption=None,
        better_score=float(better_score),
    )


def _find_side_at_fault(modality_pair: ModalityPair, p_wrong: Mapping[ModalityPair, float], row: Row) -> Modality:
    """The side of a pair that does not belong: the one that does not fit the row's third modality either, else b."""
    a, b = modality_pair
    if row.video:
        return b  # sound and pictures of a film belong together
    total_p_wrong = {m: sum(value for pair, value in p_wrong.items() if m in pair) for m in modality_pair}
    return a if total_p_wrong[a] > total_p_wrong[b] else b


def _find_caption_suspects(modality_pair: ModalityPair, scores: PairScores) -> list[Suspect]:
    """Single captions that do not belong to a row whose others do."""
    if scores.caption_p_wrong is None:
        return []
    arrays = scores.arrays
    index_of_row = {row: i for i, row in enumerate(arrays["row"].tolist())}
    suspects = []
    for e in np.flatnonzero(scores.caption_p_wrong >= P_WRONG_THRESHOLD):
        row = int(arrays["pair.row"][e])
        i = index_of_row[row]
        suspects.append(
            Suspect(
                row=row,
                verdict="wrong",
                modality_pair=modality_pair,
                modality=modality_pair[1],
                caption=int(arrays["pair.caption"][e]),
                p_wrong=float(scores.caption_p_wrong[e]),
                retained_mass=float(np.exp(arrays["pair.log_retained_mass"][e])),
                score=float(arrays["pair.score"][e]),
                better_row=int(arrays["row.best_caption_row"][i]),
                better_caption=int(arrays["row.best_caption"][i]),
                better_score=float(arrays["row.best_caption_score"][i]),
            )
        )
    return suspects
