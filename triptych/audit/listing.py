"""The audit's tables: every suspect, and every pair with its score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.audit.findings import Judged, Suspect
from triptych.audit.pairs import Kind
from triptych.contracts import Modality
from triptych.csv_files import write_rows
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.files import replacing

SUSPECT = (
    "id", "row", "verdict", "pair", "modality", "caption", "doubt", "kept", "score", "now",
    "better_id", "better_caption", "better_score", "better",
)  # fmt: skip
SCORE = ("id", "row", "pair", "caption", "score", "p", "kept", "lead", "doubt")


def write_suspects(path: Path, suspects: Iterable[Suspect], rows: Sequence[Row]) -> None:
    """A line a suspect, the most doubtful first. Captions are counted from 1, as their columns are."""
    _write(path, SUSPECT, (_suspect(one, rows) for one in suspects))


def write_scores(path: Path, judged: Mapping[Kind, Judged], rows: Sequence[Row]) -> None:
    """A line a row and kind of pair, and where rows have several captions one for each, what fits worst first."""
    lines: list[dict[str, Any]] = []
    for (a, b), found in judged.items():
        arrays = found.arrays
        for i in np.argsort(arrays["row.fit"], kind="stable").tolist():
            line = {"pair": f"{a}-{b}", "doubt": found.doubt[i], "lead": float(arrays["row.lead"][i])}
            lines.append(_score(rows[int(arrays["row"][i])], line, arrays, "row", i))
        if found.caption_doubt is None:
            continue
        for i in np.argsort(arrays["pair.kept"], kind="stable").tolist():
            line = {"pair": f"{a}-{b}", "caption": arrays["pair.caption"][i] + 1, "doubt": found.caption_doubt[i]}
            lines.append(_score(rows[int(arrays["pair.row"][i])], line, arrays, "pair", i))
    _write(path, SCORE, lines)


def _score(row: Row, line: dict[str, Any], arrays: Mapping[str, np.ndarray], of: str, i: int) -> dict[str, Any]:
    numbers = {name: float(arrays[f"{of}.{name}"][i]) for name in ("score", "p", "kept")}
    return {"id": row.id, "row": row.number, **line, **numbers, "kept": float(np.exp(numbers["kept"]))}


def _suspect(one: Suspect, rows: Sequence[Row]) -> dict[str, Any]:
    row, better = rows[one.row], None if one.better is None else rows[one.better]
    line: dict[str, Any] = {"id": row.id, "row": row.number, "verdict": one.verdict, "pair": "-".join(one.pair)}
    line |= {"modality": one.modality, "caption": None if one.caption is None else one.caption + 1}
    line |= {"doubt": one.doubt, "kept": one.kept, "score": one.score, "now": _shown(row, one.modality, one.caption)}
    if better is not None:
        number = None if one.better_caption is None else one.better_caption + 1
        line |= {"better_id": better.id, "better_caption": number, "better_score": one.better_score}
        line |= {"better": _shown(better, one.modality, one.better_caption)}
    return line


def _shown(row: Row, modality: Modality, caption: int | None) -> str:
    if modality == "text" and caption is None:
        return " | ".join(row.texts)
    return str(sources_of(row, modality)[caption or 0])


def _write(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, columns, ({name: _plain(value) for name, value in line.items()} for line in lines))


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
