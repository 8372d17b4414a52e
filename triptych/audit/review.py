"""The page on which a person goes through the suspects with the keyboard: one file, its data in one JSON block."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from triptych.audit.decisions import Decision, decision_to_dict
from triptych.audit.suspects import Suspect
from triptych.data.manifest import Row
from triptych.files import write_text
from triptych.interfaces import Modality

TEMPLATE = Path(__file__).with_name("review.html")
DATA_PLACEHOLDER = "/*DATA*/"
MODALITY_LABELS: dict[Modality, str] = {"image": "image", "audio": "audio", "text": "captions"}


def write_review_page(
    path: Path, manifest_hash: str, manifest_name: str, summary: str, suspects: Sequence[Suspect], rows: Sequence[Row]
) -> None:
    """Write the review page; its links to media are relative, so that it works from the disk as from a server."""
    counts = Counter(one.verdict for one in suspects)
    filters = [("all", f"all ({len(suspects)})"), ("open", "not decided")]
    filters += [(verdict, f"{verdict} ({count})") for verdict, count in counts.items() if len(counts) > 1]
    data = {
        "manifest_hash": manifest_hash,
        "manifest": manifest_name,
        "title": f"Review of {manifest_name}",
        "summary": summary,
        "filters": filters,
        "suspects": [_suspect_to_dict(one, rows, path.parent) for one in suspects],
    }
    # Inside a script element only "<" can end it, or begin a comment.
    block = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    write_text(path, TEMPLATE.read_text(encoding="utf-8").replace(DATA_PLACEHOLDER, block))


def make_decision(suspect: Suspect, rows: Sequence[Row], action: Any) -> Decision:
    """The decision on a suspect, were it this action."""
    replacement_row = None if suspect.better_row is None or suspect.verdict != "wrong" else rows[suspect.better_row].id
    return Decision(
        action, rows[suspect.row].id, suspect.modality, suspect.caption, replacement_row, suspect.better_caption
    )


def _suspect_to_dict(suspect: Suspect, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    row = rows[suspect.row]
    other_modalities: list[Modality] = [m for m in row.modalities if m != suspect.modality]
    subject = "caption" if suspect.caption is not None else MODALITY_LABELS[suspect.modality]
    is_wrong = suspect.verdict == "wrong"
    better_row = None if suspect.better_row is None else rows[suspect.better_row]
    cards = [
        _make_card(
            "anchor",
            f"The {' and the '.join(MODALITY_LABELS[m] for m in other_modalities)}",
            _show_modalities(row, other_modalities, folder),
        ),
        _make_card(
            "current",
            f"Its {subject} now",
            _show_modality(row, suspect.modality, folder, suspect.caption, "doubted" if is_wrong else ""),
        ),
    ]
    if better_row is not None and is_wrong:
        better_content = _show_modality(
            better_row,
            suspect.modality,
            folder,
            suspect.better_caption,
            "proposed",
            only_caption=suspect.better_caption is not None,
        )
        cards.append(_make_card("better", f"{subject.capitalize()} that would fit better", better_content))
    elif better_row is not None:
        cards.append(
            _make_card("better", "Nearly the same", _show_modalities(better_row, better_row.modalities, folder))
        )
    return {
        "key": f"{row.id}|{suspect.modality}|{'' if suspect.caption is None else suspect.caption}",
        "verdict": suspect.verdict,
        "label": f"{subject} probably wrong" if is_wrong else "nearly the same as another row",
        "title": row.id,
        "reason": f"{min(99, round(100 * suspect.p_wrong))}% likely wrong · the plan keeps {100 * suspect.retained_mass:.1f}% of it",
        "cards": cards,
        "can_swap": is_wrong and better_row is not None,
        "decision": decision_to_dict(make_decision(suspect, rows, "keep")),
    }


def _make_card(name: str, title: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "title": title, **content}


def _show_modalities(row: Row, modalities: Sequence[Modality], folder: Path) -> dict[str, Any]:
    """Several modalities of a row on one card; a film, which is two of them, once."""
    contents = [_show_modality(row, m, folder) for m in modalities]
    media = {medium["url"]: medium for one in contents for medium in one["media"]}
    return contents[0] | {"media": list(media.values()), "texts": [text for one in contents for text in one["texts"]]}


def _show_modality(
    row: Row,
    modality: Modality,
    folder: Path,
    caption: int | None = None,
    highlight: str = "",
    only_caption: bool = False,
) -> dict[str, Any]:
    """What a card shows: a file, or texts of which some are marked; alone: only the one caption."""
    if modality == "text":
        texts = [row.texts[caption or 0]] if only_caption else list(row.texts)
        highlighted = [caption] if caption is not None and not only_caption else list(range(len(texts)))
        return {
            "row": row.id,
            "media": [],
            "texts": texts,
            "highlighted": highlighted if highlight else [],
            "highlight_class": highlight,
        }
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    url = quote(Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix())
    if row.start is not None or row.end is not None:
        url += f"#t={row.start or 0:g}" + (f",{row.end:g}" if row.end is not None else "")
    media_type = "video" if path == row.video else modality
    media = [{"modality": media_type, "url": url, "name": path.name}]
    return {"row": row.id, "media": media, "texts": [], "highlighted": [], "highlight_class": ""}
