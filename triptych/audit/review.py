"""The page on which a person goes through the suspects with the keyboard: one file, its data in one JSON block."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from triptych.audit.decisions import Decision, told
from triptych.audit.findings import Suspect
from triptych.contracts import Modality
from triptych.data.manifest import Row
from triptych.files import write_text

TEMPLATE = Path(__file__).with_name("review.html")
MARK = "/*DATA*/"
NAMES: dict[Modality, str] = {"image": "picture", "audio": "sound", "text": "captions"}


def write_page(
    path: Path, audit: str, title: str, summary: str, suspects: Sequence[Suspect], rows: Sequence[Row]
) -> None:
    """Write the review page; its links to media are relative, so that it works from the disk as from a server."""
    counts = Counter(one.verdict for one in suspects)
    filters = [("all", f"all ({len(suspects)})"), ("open", "not decided")]
    filters += [(verdict, f"{verdict} ({count})") for verdict, count in counts.items() if len(counts) > 1]
    data = {
        "audit": audit,
        "manifest": title,
        "title": f"Review of {title}",
        "summary": summary,
        "filters": filters,
        "suspects": [_entry(one, rows, path.parent) for one in suspects],
    }
    # Inside a script element only "<" can end it, or begin a comment.
    block = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    write_text(path, TEMPLATE.read_text(encoding="utf-8").replace(MARK, block))


def decision_on(one: Suspect, rows: Sequence[Row], action: Any) -> Decision:
    """The decision on a suspect, were it this action."""
    better = None if one.better is None or one.verdict != "wrong" else rows[one.better].id
    return Decision(action, rows[one.row].id, one.modality, one.caption, better, one.better_caption)


def _entry(one: Suspect, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    row = rows[one.row]
    beside: list[Modality] = [m for m in row.modalities if m != one.modality]
    what = "caption" if one.caption is not None else NAMES[one.modality]
    wrong = one.verdict == "wrong"
    better = None if one.better is None else rows[one.better]
    cards = [
        _card("anchor", f"The {' and the '.join(NAMES[m] for m in beside)}", _things(row, beside, folder)),
        _card("now", f"Its {what} now", _thing(row, one.modality, folder, one.caption, "doubted" if wrong else "")),
    ]
    if better is not None and wrong:
        other = _thing(
            better, one.modality, folder, one.better_caption, "proposed", alone=one.better_caption is not None
        )
        cards.append(_card("better", f"{what.capitalize()} that would fit better", other))
    elif better is not None:
        cards.append(_card("better", "Nearly the same", _things(better, better.modalities, folder)))
    return {
        "key": f"{row.id}|{one.modality}|{'' if one.caption is None else one.caption}",
        "kind": one.verdict,
        "label": f"{what} probably wrong" if wrong else "nearly the same as another row",
        "title": row.id,
        "why": f"{min(99, round(100 * one.doubt))}% likely wrong · the plan keeps {100 * one.kept:.1f}% of it",
        "cards": cards,
        "swap": wrong and better is not None,
        "change": told(decision_on(one, rows, "keep")),
    }


def _card(name: str, title: str, thing: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "title": title, **thing}


def _things(row: Row, modalities: Sequence[Modality], folder: Path) -> dict[str, Any]:
    """Several modalities of a row on one card; a film, which is two of them, once."""
    found = [_thing(row, m, folder) for m in modalities]
    media = {medium["url"]: medium for one in found for medium in one["media"]}
    return found[0] | {"media": list(media.values()), "texts": [text for one in found for text in one["texts"]]}


def _thing(
    row: Row, modality: Modality, folder: Path, caption: int | None = None, mark: str = "", alone: bool = False
) -> dict[str, Any]:
    """What a card shows: a file, or texts of which some are marked; alone: only the one caption."""
    if modality == "text":
        texts = [row.texts[caption or 0]] if alone else list(row.texts)
        marked = [caption] if caption is not None and not alone else list(range(len(texts)))
        return {"row": row.id, "media": [], "texts": texts, "marked": marked if mark else [], "mark": mark}
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    url = quote(Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix())
    if row.start is not None or row.end is not None:
        url += f"#t={row.start or 0:g}" + (f",{row.end:g}" if row.end is not None else "")
    kind = "video" if path == row.video else modality
    media = [{"modality": kind, "url": url, "name": path.name}]
    return {"row": row.id, "media": media, "texts": [], "marked": [], "mark": ""}
