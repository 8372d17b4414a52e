"""The audit's tables: every suspect, and every pair with its score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.audit.pairs import ModalityPair
from triptych.audit.suspects import PairScores, Suspect
from triptych.csv_files import write_rows
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.files import atomic_write
from triptych.interfaces import Modality

SUSPECT_COLUMNS = (
    "id", "row", "verdict", "modality_pair", "modality", "caption", "p_wrong", "retained_mass", "score", "current",
    "better_id", "better_caption", "better_score", "better",
)  # fmt: skip
SCORE_COLUMNS = ("id", "row", "modality_pair", "caption", "score", "p_value", "retained_mass", "margin", "p_wrong")


def write_suspects(path: Path, suspects: Iterable[Suspect], rows: Sequence[Row]) -> None:
    """A line a suspect, the most doubtful first. Captions are counted from 1, as their columns are."""
    _write_csv(path, SUSPECT_COLUMNS, (_suspect_to_dict(one, rows) for one in suspects))


def write_scores(path: Path, pair_scores: Mapping[ModalityPair, PairScores], rows: Sequence[Row]) -> None:
    """A line a row and kind of pair, and where rows have several captions one for each, what fits worst first."""
    lines: list[dict[str, Any]] = []
    for (a, b), scores in pair_scores.items():
        arrays = scores.arrays
        for i in np.argsort(arrays["row.fit_score"], kind="stable").tolist():
            line = {"modality_pair": f"{a}-{b}", "p_wrong": scores.p_wrong[i], "margin": float(arrays["row.margin"][i])}
            lines.append(_score_to_dict(rows[int(arrays["row"][i])], line, arrays, "row", i))
        if scores.caption_p_wrong is None:
            continue
        for i in np.argsort(arrays["pair.log_retained_mass"], kind="stable").tolist():
            line = {
                "modality_pair": f"{a}-{b}",
                "caption": arrays["pair.caption"][i] + 1,
                "p_wrong": scores.caption_p_wrong[i],
            }
            lines.append(_score_to_dict(rows[int(arrays["pair.row"][i])], line, arrays, "pair", i))
    _write_csv(path, SCORE_COLUMNS, lines)


def _score_to_dict(
    row: Row, line: dict[str, Any], arrays: Mapping[str, np.ndarray], level: str, i: int
) -> dict[str, Any]:
    values = {name: float(arrays[f"{level}.{name}"][i]) for name in ("score", "p_value", "log_retained_mass")}
    return {
        "id": row.id,
        "row": row.number,
        **line,
        "retained_mass": float(np.exp(values.pop("log_retained_mass"))),
        **values,
    }


def _suspect_to_dict(suspect: Suspect, rows: Sequence[Row]) -> dict[str, Any]:
    row, better_row = rows[suspect.row], None if suspect.better_row is None else rows[suspect.better_row]
    line: dict[str, Any] = {
        "id": row.id,
        "row": row.number,
        "verdict": suspect.verdict,
        "modality_pair": "-".join(suspect.modality_pair),
    }
    line |= {"modality": suspect.modality, "caption": None if suspect.caption is None else suspect.caption + 1}
    line |= {
        "p_wrong": suspect.p_wrong,
        "retained_mass": suspect.retained_mass,
        "score": suspect.score,
        "current": _format_content(row, suspect.modality, suspect.caption),
    }
    if better_row is not None:
        caption_number = None if suspect.better_caption is None else suspect.better_caption + 1
        line |= {"better_id": better_row.id, "better_caption": caption_number, "better_score": suspect.better_score}
        line |= {"better": _format_content(better_row, suspect.modality, suspect.better_caption)}
    return line


def _format_content(row: Row, modality: Modality, caption: int | None) -> str:
    if modality == "text" and caption is None:
        return " | ".join(row.texts)
    return str(sources_of(row, modality)[caption or 0])


def _write_csv(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, columns, ({name: _format_value(value) for name, value in line.items()} for line in lines))


def _format_value(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
