"""Review of suspects: write the review page, read the saved decisions, and apply them to the manifest."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import jinja2

from triptych.auditing.suspects import Suspect
from triptych.data import manifest
from triptych.data.datasets.derived import item_from_row, resolve_derived_path, write_derived_manifest
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.datasets.manifest_writer import WrittenManifest
from triptych.data.manifest import Row
from triptych.errors import UsageError, describe_unknown
from triptych.files import write_text
from triptych.interfaces import MODALITIES, Modality

FORMAT_VERSION = 2  # format version of decisions.json
MODALITY_LABELS: dict[Modality, str] = {"image": "image", "audio": "audio", "text": "captions"}
Action = Literal["keep", "reject", "swap"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class Decision:
    """Keep or remove one modality of one row, or replace it with the same modality of another row."""

    action: Action
    row: str
    modality: Modality
    caption: int | None = None  # index of a single caption; None for all captions, an audio file or an image file
    replacement_row: str | None = None
    replacement_caption: int | None = None


def make_decision(suspect: Suspect, rows: Sequence[Row], action: Action) -> Decision:
    """Return the decision to apply an action to a suspect."""
    s = suspect
    replacement_row = None if s.better_row is None or s.verdict != "wrong" else rows[s.better_row].id
    return Decision(action, rows[s.row].id, s.modality, s.caption, replacement_row, s.better_caption)


def write_review_page(
    path: Path, manifest_hash: str, manifest_name: str, summary: str, suspects: Sequence[Suspect], rows: Sequence[Row]
) -> None:
    """Write the review page. Links to media are relative, so the page works from the disk and from a server."""
    counts = Counter(suspect.verdict for suspect in suspects)
    filters = {"all": f"all ({len(suspects)})", "open": "undecided"}
    filters |= {verdict: f"{verdict} ({count})" for verdict, count in counts.items() if len(counts) > 1}
    environment = jinja2.Environment(loader=jinja2.PackageLoader("triptych.auditing", ""), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    page = environment.get_template("review.html").render(
        title=f"Review of {manifest_name}",
        summary=summary,
        filters=filters,
        data={
            "format_version": FORMAT_VERSION,
            "manifest_hash": manifest_hash,
            "manifest": manifest_name,
            "suspects": [_suspect_to_dict(suspect, rows, path.parent) for suspect in suspects],
        },
    )
    write_text(path, page)


def _suspect_to_dict(suspect: Suspect, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    row = rows[suspect.row]
    other_modalities: list[Modality] = [m for m in row.modalities if m != suspect.modality]
    subject = "caption" if suspect.caption is not None else MODALITY_LABELS[suspect.modality]
    is_wrong = suspect.verdict == "wrong"
    better_row = None if suspect.better_row is None else rows[suspect.better_row]
    current = _show_modality(row, suspect.modality, folder, suspect.caption, "doubted" if is_wrong else "")
    anchor_title = f"The {' and the '.join(MODALITY_LABELS[m] for m in other_modalities)}"
    cards = [
        {"name": "anchor", "title": anchor_title, **_show_modalities(row, other_modalities, folder)},
        {"name": "current", "title": f"Current {subject}", **current},
    ]
    if better_row is not None and is_wrong:
        caption = suspect.better_caption
        content = _show_modality(better_row, suspect.modality, folder, caption, "proposed", caption is not None)
        cards.append({"name": "better", "title": f"Better {subject}", **content})
    elif better_row is not None:
        content = _show_modalities(better_row, better_row.modalities, folder)
        cards.append({"name": "better", "title": "Near-duplicate", **content})
    decision = asdict(make_decision(suspect, rows, "keep"))
    del decision["action"]
    return {
        "key": f"{row.id}|{suspect.modality}|{'' if suspect.caption is None else suspect.caption}",
        "verdict": suspect.verdict,
        "label": f"{subject} probably wrong" if is_wrong else "near-duplicate of another row",
        "title": row.id,
        "reason": f"{min(99, round(100 * suspect.p_wrong))}% probability of being wrong · "
        f"{100 * suspect.retained_mass:.1f}% of the transport mass retained",
        "cards": cards,
        "can_swap": is_wrong and better_row is not None,
        "decision": decision,
    }


def _show_modalities(row: Row, modalities: Sequence[Modality], folder: Path) -> dict[str, Any]:
    """Return the data of a review card for several modalities of a row. A video is shown once."""
    contents = [_show_modality(row, m, folder) for m in modalities]
    media = {medium["url"]: medium for content in contents for medium in content["media"]}
    texts = [text for content in contents for text in content["texts"]]
    return contents[0] | {"media": list(media.values()), "texts": texts}


def _show_modality(
    row: Row,
    modality: Modality,
    folder: Path,
    caption: int | None = None,
    highlight: str = "",
    only_caption: bool = False,
) -> dict[str, Any]:
    """Return the data of a review card: a file, or captions, one or all of which are highlighted."""
    if modality == "text":
        texts = [row.texts[caption or 0]] if only_caption else list(row.texts)
        highlighted = [caption] if caption is not None and not only_caption else list(range(len(texts)))
        highlighted = highlighted if highlight else []
        return {"row": row.id, "media": [], "texts": texts, "highlighted": highlighted, "highlight_class": highlight}
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    url = quote(Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix())
    if row.start is not None or row.end is not None:
        url += f"#t={row.start or 0:g}" + (f",{row.end:g}" if row.end is not None else "")
    media = [{"modality": "video" if path == row.video else modality, "url": url, "name": path.name}]
    return {"row": row.id, "media": media, "texts": [], "highlighted": [], "highlight_class": ""}


def read_decisions(path: Path, manifest_hash: str, undecided: Action = "keep") -> list[Decision]:
    """Read the decisions saved from the review page. `undecided` is the action for all undecided suspects.

    Raise UsageError if the decisions are about another manifest.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as decisions ({error}); save the file again") from error
    lists = [document.get(name) for name in ("decisions", "undecided")] if isinstance(document, dict) else [None]
    if not all(isinstance(entries, list) for entries in lists) or document.get("format_version") != FORMAT_VERSION:
        raise UsageError(f"{path}: not a file of decisions; save the decisions from the review page")
    if document.get("manifest_hash") != manifest_hash:
        raise UsageError(
            f"{path}: these decisions are about another manifest, or about an earlier version of this manifest "
            f"({document.get('manifest')}, hash {document.get('manifest_hash')}; the manifest now has the hash "
            f"{manifest_hash}); run the audit again"
        )
    open_decisions = [_parse_decision(path, fields, undecided) for fields in document["undecided"]]
    return [_parse_decision(path, fields) for fields in document["decisions"]] + open_decisions


def _parse_decision(path: Path, fields: Any, action: Action | None = None) -> Decision:
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: a decision must be a JSON object, not {str(fields)[:40]}")
    fields = {name: value for name, value in fields.items() if name != "key"} | ({"action": action} if action else {})
    try:
        decision = Decision(**fields)
    except TypeError as error:
        raise UsageError(f"{path}: a decision has unknown or missing fields: {error}") from error
    for field, value, allowed in (("action", decision.action, ACTIONS), ("modality", decision.modality, MODALITIES)):
        if value not in allowed:
            raise UsageError(f"{path}: {describe_unknown(field, str(value), allowed)}")
    has_valid_captions = all(n is None or type(n) is int for n in (decision.caption, decision.replacement_caption))
    has_replacement = decision.action != "swap" or isinstance(decision.replacement_row, str)
    if not (has_valid_captions and has_replacement and isinstance(decision.row, str)):
        raise UsageError(f"{path}: the decision about row {str(decision.row)[:60]!r} is incomplete")
    return decision


def apply_decisions(rows: Sequence[Row], decisions: Iterable[Decision]) -> tuple[list[DraftItem], Counter[str]]:
    """Apply decisions to rows. Return the resulting rows, and the number of decisions by action."""
    before = {row.id: item_from_row(row) for row in rows}
    after, rejected_captions, counts = dict(before), dict[str, set[int]](), Counter[str]()
    for decision in decisions:
        counts[decision.action] += 1
        _check_target(before, decision.row, decision.modality, decision.caption)
        if decision.replacement_row is not None:
            _check_target(before, decision.replacement_row, decision.modality, decision.replacement_caption)
        item = after[decision.row]
        if decision.action == "swap":
            after[decision.row] = _replace_content(item, before[decision.replacement_row or ""], decision)
        elif decision.action == "reject" and decision.caption is not None:
            rejected_captions.setdefault(decision.row, set()).add(decision.caption)
        elif decision.action == "reject" and decision.modality == "text":
            after[decision.row] = replace(item, texts=())
        elif decision.action == "reject":
            files = {name: path for name, path in item.files.items() if name != decision.modality}
            after[decision.row] = replace(item, files=files)
    for name, captions in rejected_captions.items():
        texts = tuple(text for i, text in enumerate(after[name].texts) if i not in captions)
        after[name] = replace(after[name], texts=texts)
    return list(after.values()), counts


def _check_target(items: Mapping[str, DraftItem], row: str, modality: Modality, caption: int | None) -> None:
    """Raise UsageError if a decision is about a row, file or caption that the manifest does not have."""
    item = items.get(row)
    if item is None:
        raise UsageError(f"a decision is about row {row!r}, but the manifest has no row with this id")
    if modality != "text" and modality not in item.files and "video" not in item.files:
        raise UsageError(f"a decision is about the {modality} of row {row!r}, but this row has no {modality}")
    if modality == "text" and not item.texts:
        raise UsageError(f"a decision is about the captions of row {row!r}, but this row has no captions")
    if caption is not None and not (modality == "text" and 0 <= caption < len(item.texts)):
        captions = f"{len(item.texts)} captions, numbered from 0"
        raise UsageError(f"a decision is about caption {caption} of row {row!r}, but this row has {captions}")


def _replace_content(item: DraftItem, other: DraftItem, decision: Decision) -> DraftItem:
    if decision.modality != "text":
        path = other.files.get(decision.modality)
        if path is None:
            raise UsageError(
                f"row {item.id!r} cannot be given the {decision.modality} of row {other.id!r}, because "
                f"row {other.id!r} has no {decision.modality} file"
            )
        files = {**item.files, decision.modality: path}
        segment = {"start": other.start, "end": other.end} if decision.modality == "audio" else {}
        return replace(item, files=files, **segment)
    if decision.caption is None:
        return replace(item, texts=other.texts)
    texts = list(item.texts)
    texts[decision.caption] = other.texts[decision.replacement_caption or 0]
    return replace(item, texts=tuple(texts))


def write_reviewed_manifest(
    table: manifest.Manifest, decisions: Sequence[Decision], output: Path, source: str
) -> tuple[WrittenManifest, ManifestDraft]:
    """Write a new manifest with the decisions applied. Rows that no longer contain a pair are omitted."""
    output = resolve_derived_path(output, table)
    items, counts = apply_decisions(table.rows, decisions)
    return write_derived_manifest(table, items, output, source, {action: counts[action] for action in ACTIONS})
