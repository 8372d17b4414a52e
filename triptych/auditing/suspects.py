"""Find suspects (wrong rows, wrong captions, near-duplicates) in the scores of all folds, and write CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from triptych.auditing.evidence import NoiseRateEstimate, estimate_noise_rate_from_p_values, estimate_p_wrong
from triptych.auditing.folds import ModalityPair
from triptych.auditing.scoring import CaptionScores, FoldScores, RowScores, concat_scores
from triptych.csv_files import write_rows
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.files import atomic_write
from triptych.interfaces import Modality
from triptych.result_tables import rows_to_arrow

if TYPE_CHECKING:
    import pyarrow

P_WRONG_THRESHOLD = 0.5  # a pair with at least this probability of being wrong is a suspect
DUPLICATE_COSINE = 0.95  # two items with at least this cosine similarity are near-duplicates
LOG_HALF = float(np.log(0.5))  # log retained mass below which the plan prefers another pair
SUSPECT_COLUMNS: tuple[str, ...] = (
    "id", "row", "verdict", "modality_pair", "modality", "caption", "p_wrong", "retained_mass", "score", "current",
    "better_id", "better_caption", "better_score", "better",
)  # fmt: skip
INTEGER_COLUMNS: tuple[str, ...] = ("row", "caption", "better_caption")
FLOAT_COLUMNS: tuple[str, ...] = ("p_wrong", "retained_mass", "score", "better_score")
SCORE_COLUMNS = ("id", "row", "modality_pair", "caption", "score", "p_value", "retained_mass", "margin", "p_wrong")

Verdict = Literal["wrong", "near-duplicate"]


@dataclass(frozen=True)
class Suspect:
    """A file or caption that is probably wrong in its row, or a row that is a near-duplicate of another row."""

    row: int  # index in the list of rows
    verdict: Verdict
    modality_pair: ModalityPair
    modality: Modality  # the modality that is probably wrong
    caption: int | None  # index of the suspected caption; None if all captions or a file are suspected
    p_wrong: float
    retained_mass: float  # fraction of the pair's mass that the plan keeps on the pair
    score: float
    better_row: int | None  # the row whose file or captions fit better, or of which this row is a near-duplicate
    better_caption: int | None  # index of the better caption in better_row, if a single caption is suspected
    better_score: float


@dataclass(frozen=True)
class PairScores:
    """All scores of one modality pair with the estimated noise rates and the probability that each pair is wrong."""

    rows: RowScores
    captions: CaptionScores
    noise_rate: NoiseRateEstimate
    p_wrong: np.ndarray  # (N,), one per row of `rows`
    caption_noise_rate: NoiseRateEstimate | None  # in rows that are not suspects; None if each row has one caption
    caption_p_wrong: np.ndarray | None  # one per caption of `captions`


def merge_folds(folds: Sequence[FoldScores]) -> PairScores:
    """Merge the folds of one modality pair, and estimate its noise rate and the probability that each pair is wrong."""
    rows = concat_scores([fold.rows for fold in folds])
    captions = concat_scores([fold.captions for fold in folds])
    noise_rate = estimate_noise_rate_from_p_values(rows.p_value)
    p_wrong = estimate_p_wrong(rows.p_value, rows.fit_score, noise_rate.value)
    if len(captions.row) == len(rows.row):
        return PairScores(rows, captions, noise_rate, p_wrong, None, None)
    in_right_row = ~np.isin(captions.row, rows.row[p_wrong >= P_WRONG_THRESHOLD])
    p_values, fit_scores = captions.p_value[in_right_row], captions.log_retained_mass[in_right_row]
    caption_noise_rate = estimate_noise_rate_from_p_values(p_values)
    caption_p_wrong = np.zeros(len(in_right_row))
    caption_p_wrong[in_right_row] = estimate_p_wrong(p_values, fit_scores, caption_noise_rate.value)
    return PairScores(rows, captions, noise_rate, p_wrong, caption_noise_rate, caption_p_wrong)


def find_suspects(pair_scores: Mapping[ModalityPair, PairScores], rows: Sequence[Row]) -> list[Suspect]:
    """Return all suspects by descending p_wrong, with near-duplicates last.

    A row has at most one suspect for the row itself, and one for each caption that is probably wrong.
    """
    index_by_row: dict[int, dict[ModalityPair, int]] = {}
    for modality_pair, scores in pair_scores.items():
        for i, row in enumerate(scores.rows.row.tolist()):
            index_by_row.setdefault(row, {})[modality_pair] = i
    candidates = (_find_row_suspect(row, rows[row], indices, pair_scores) for row, indices in index_by_row.items())
    suspects = [suspect for suspect in candidates if suspect]
    wrong_rows = {suspect.row for suspect in suspects if suspect.verdict == "wrong"}
    for modality_pair, scores in pair_scores.items():
        suspects += [s for s in _find_caption_suspects(modality_pair, scores) if s.row not in wrong_rows]
    ordered = sorted(suspects, key=lambda s: (s.verdict != "wrong", -s.p_wrong, s.retained_mass, s.row))
    return [suspect for suspect in ordered if suspect.verdict == "wrong" or suspect.row not in wrong_rows]


def _find_row_suspect(
    row: int, manifest_row: Row, indices: Mapping[ModalityPair, int], pair_scores: Mapping[ModalityPair, PairScores]
) -> Suspect | None:
    """Return the suspect in the modality pair of a row with the highest p_wrong, or None if all pairs fit.

    `indices` has the index of the row in the scores of each modality pair.
    """
    p_wrong = {pair: float(pair_scores[pair].p_wrong[i]) for pair, i in indices.items()}
    log_mass = {pair: pair_scores[pair].rows.log_retained_mass[i] for pair, i in indices.items()}
    modality_pair = max(p_wrong, key=lambda pair: (p_wrong[pair], -log_mass[pair]))
    scores, i = pair_scores[modality_pair].rows, indices[modality_pair]
    is_b_duplicate = scores.duplicate_cosine_b[i] >= DUPLICATE_COSINE
    is_wrong = p_wrong[modality_pair] >= P_WRONG_THRESHOLD and not is_b_duplicate
    is_near_duplicate = (
        scores.log_retained_mass[i] < LOG_HALF
        and (is_b_duplicate or scores.duplicate_cosine_a[i] >= DUPLICATE_COSINE)
        and scores.near_duplicate[i] >= 0
    )
    if not is_wrong and not is_near_duplicate:
        return None
    modality = _find_side_at_fault(modality_pair, p_wrong, manifest_row)
    if not is_wrong:
        better_row, better_score = scores.near_duplicate[i], scores.score[i]
    elif modality == modality_pair[1]:
        better_row, better_score = scores.better_b[i], scores.better_b_score[i]
    else:
        better_row, better_score = scores.better_a[i], scores.better_a_score[i]
    return Suspect(
        row=row,
        verdict="wrong" if is_wrong else "near-duplicate",
        modality_pair=modality_pair,
        modality=modality,
        caption=None,
        p_wrong=p_wrong[modality_pair],
        retained_mass=float(np.exp(scores.log_retained_mass[i])),
        score=float(scores.score[i]),
        better_row=int(better_row) if better_row != row else None,
        better_caption=None,
        better_score=float(better_score),
    )


def _find_side_at_fault(modality_pair: ModalityPair, p_wrong: Mapping[ModalityPair, float], row: Row) -> Modality:
    """Return the modality of a pair with the higher total p_wrong over all pairs of the row; `b` if they are equal."""
    a, b = modality_pair
    if row.video:
        return b  # the audio and image of a video belong together
    total_p_wrong = {m: sum(value for pair, value in p_wrong.items() if m in pair) for m in modality_pair}
    return a if total_p_wrong[a] > total_p_wrong[b] else b


def _find_caption_suspects(modality_pair: ModalityPair, scores: PairScores) -> list[Suspect]:
    """Return the single captions that are probably wrong in rows that are not suspects."""
    if scores.caption_p_wrong is None:
        return []
    rows, captions = scores.rows, scores.captions
    index_of_row = {row: i for i, row in enumerate(rows.row.tolist())}
    indices = np.flatnonzero(scores.caption_p_wrong >= P_WRONG_THRESHOLD)
    return [
        Suspect(
            row=int(captions.row[e]),
            verdict="wrong",
            modality_pair=modality_pair,
            modality=modality_pair[1],
            caption=int(captions.caption[e]),
            p_wrong=float(scores.caption_p_wrong[e]),
            retained_mass=float(np.exp(captions.log_retained_mass[e])),
            score=float(captions.score[e]),
            better_row=int(rows.best_caption_row[i]),
            better_caption=int(rows.best_caption[i]),
            better_score=float(rows.best_caption_score[i]),
        )
        for e, i in ((e, index_of_row[int(captions.row[e])]) for e in indices)
    ]


def write_suspects(path: Path, suspects: Iterable[Suspect], rows: Sequence[Row]) -> None:
    """Write one line per suspect, in the given order. Captions are numbered from 1."""
    _write_csv(path, SUSPECT_COLUMNS, (suspect_to_row(suspect, rows) for suspect in suspects))


def write_scores(path: Path, pair_scores: Mapping[ModalityPair, PairScores], rows: Sequence[Row]) -> None:
    """Write one line per row and modality pair, and per caption if rows have several captions; worst fit first."""
    lines: list[dict[str, Any]] = []
    for (a, b), scores in pair_scores.items():
        pair = {"modality_pair": f"{a}-{b}"}
        for i in np.argsort(scores.rows.fit_score, kind="stable").tolist():
            line = {**pair, "p_wrong": scores.p_wrong[i], "margin": float(scores.rows.margin[i])}
            lines.append(line | _score_to_dict(scores.rows, i, rows))
        if scores.caption_p_wrong is None:
            continue
        for i in np.argsort(scores.captions.log_retained_mass, kind="stable").tolist():
            line = {**pair, "p_wrong": scores.caption_p_wrong[i], "caption": scores.captions.caption[i] + 1}
            lines.append(line | _score_to_dict(scores.captions, i, rows))
    _write_csv(path, SCORE_COLUMNS, lines)


def _score_to_dict(scores: RowScores | CaptionScores, i: int, rows: Sequence[Row]) -> dict[str, Any]:
    row = rows[int(scores.row[i])]
    return {
        "id": row.id,
        "row": row.number,
        "score": float(scores.score[i]),
        "p_value": float(scores.p_value[i]),
        "retained_mass": float(np.exp(float(scores.log_retained_mass[i]))),
    }


def suspects_to_arrow(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Return a table of rows of `suspect_to_row`. The types of the columns do not depend on the rows."""
    types = dict.fromkeys(SUSPECT_COLUMNS, "string")
    types |= dict.fromkeys(INTEGER_COLUMNS, "int64") | dict.fromkeys(FLOAT_COLUMNS, "float64")
    return rows_to_arrow(rows, SUSPECT_COLUMNS, types)


def suspect_to_row(suspect: Suspect, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the line of a suspect in suspects.csv, with the columns SUSPECT_COLUMNS. Captions are numbered from 1."""
    row, better_row = rows[suspect.row], None if suspect.better_row is None else rows[suspect.better_row]
    line: dict[str, Any] = {
        "id": row.id,
        "row": row.number,
        "verdict": suspect.verdict,
        "modality_pair": "-".join(suspect.modality_pair),
        "modality": suspect.modality,
        "caption": None if suspect.caption is None else suspect.caption + 1,
        "p_wrong": suspect.p_wrong,
        "retained_mass": suspect.retained_mass,
        "score": suspect.score,
        "current": _format_content(row, suspect.modality, suspect.caption),
    }
    if better_row is not None:
        line |= {
            "better_id": better_row.id,
            "better_caption": None if suspect.better_caption is None else suspect.better_caption + 1,
            "better_score": suspect.better_score,
            "better": _format_content(better_row, suspect.modality, suspect.better_caption),
        }
    return line


def _format_content(row: Row, modality: Modality, caption: int | None) -> str:
    if modality == "text" and caption is None:
        return " | ".join(row.texts)
    return str(sources_of(row, modality)[caption or 0])


def _write_csv(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        formatted = ({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines)
        write_rows(file, columns, formatted)
