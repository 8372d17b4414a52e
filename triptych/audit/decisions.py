"""What a person, or the audit itself, decides of suspects, and the manifest that comes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from triptych.data import manifest
from triptych.data.manifest import Row
from triptych.data.noise_injection import item_from_row
from triptych.data.sources.draft import DraftItem, ManifestDraft
from triptych.data.sources.manifest_writer import (
    Origin,
    WrittenManifest,
    read_licence,
    resolve_output_path,
    write_manifest,
)
from triptych.errors import UsageError, describe_unknown
from triptych.interfaces import MODALITIES, Modality

FORMAT_VERSION = 2
Action = Literal["keep", "reject", "swap"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class Decision:
    """What becomes of one thing in one row: kept, taken out, or replaced by that of another row."""

    action: Action
    row: str
    modality: Modality
    caption: int | None = None  # one of the row's captions; None for all, and for sounds and pictures
    replacement_row: str | None = None
    replacement_caption: int | None = None


def read_decisions(path: Path, manifest_hash: str, undecided: Action = "keep") -> list[Decision]:
    """The decisions that the review page saved, and the one for what is still open there.

    Those about another manifest are refused.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as decisions ({error}); save them from the review page") from error
    lists = [document.get(name) for name in ("decisions", "undecided")] if isinstance(document, dict) else [None]
    if (
        not isinstance(document, dict)
        or document.get("format_version") != FORMAT_VERSION
        or not all(isinstance(entries, list) for entries in lists)
    ):
        raise UsageError(f"{path}: holds no decisions; save them from the review page")
    if document.get("manifest_hash") != manifest_hash:
        raise UsageError(
            f"{path}: these decisions are about another manifest, or about this one before it was changed "
            f"({document.get('manifest')}, {document.get('manifest_hash')}; this one is {manifest_hash}); audit it again"
        )
    open_decisions = [_parse_decision(path, one, undecided) for one in document["undecided"]]
    return [_parse_decision(path, one) for one in document["decisions"]] + open_decisions


def _parse_decision(path: Path, fields: Any, action: Action | None = None) -> Decision:
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: a decision should be an object, is {str(fields)[:40]}")
    fields = {name: value for name, value in fields.items() if name != "key"} | ({"action": action} if action else {})
    try:
        decision = Decision(**fields)
    except TypeError as error:
        raise UsageError(f"{path}: a decision has strange or missing fields: {error}") from error
    for field, value, allowed in (("action", decision.action, ACTIONS), ("modality", decision.modality, MODALITIES)):
        if value not in allowed:
            raise UsageError(f"{path}: {describe_unknown(field, str(value), allowed)}")
    has_valid_captions = all(
        number is None or type(number) is int for number in (decision.caption, decision.replacement_caption)
    )
    if (
        not has_valid_captions
        or not isinstance(decision.row, str)
        or (decision.action == "swap") > isinstance(decision.replacement_row, str)
    ):
        raise UsageError(f"{path}: the decision about row {str(decision.row)[:60]!r} is not whole")
    return decision


def apply_decisions(rows: Sequence[Row], decisions: Iterable[Decision]) -> tuple[list[DraftItem], Counter[str]]:
    """The rows after the decisions, and how many of each action there were."""
    before = {row.id: item_from_row(row) for row in rows}
    after, rejected_captions, counts = dict(before), dict[str, set[int]](), Counter[str]()
    for decision in decisions:
        counts[decision.action] += 1
        _check_target(before, decision.row, decision.modality, decision.caption)
        if decision.replacement_row is not None:
            _check_target(before, decision.replacement_row, decision.modality, decision.replacement_caption)
        if decision.action == "swap":
            after[decision.row] = _replace_content(
                after[decision.row], before[decision.replacement_row or ""], decision
            )
        elif decision.action == "reject" and decision.caption is not None:
            rejected_captions.setdefault(decision.row, set()).add(decision.caption)
        elif decision.action == "reject":
            after[decision.row] = _remove_modality(after[decision.row], decision.modality)
    for name, captions in rejected_captions.items():
        texts = tuple(text for i, text in enumerate(after[name].texts) if i not in captions)
        after[name] = replace(after[name], texts=texts)
    return list(after.values()), counts


def _check_target(items: Mapping[str, DraftItem], row: str, modality: Modality, caption: int | None) -> None:
    """Refuse a decision about something that the manifest does not have, whatever the action is."""
    item = items.get(row)
    if item is None:
        raise UsageError(f"a decision names row {row!r}, which the manifest does not have")
    if modality != "text" and modality not in item.files and "video" not in item.files:
        raise UsageError(f"a decision is about the {modality} of row {row!r}, which has none")
    if modality == "text" and not item.texts:
        raise UsageError(f"a decision is about the captions of row {row!r}, which has none")
    if caption is not None and not (modality == "text" and 0 <= caption < len(item.texts)):
        raise UsageError(
            f"a decision is about caption {caption} of row {row!r}, from 0, which has {len(item.texts)} captions"
        )


def write_reviewed_manifest(
    table: manifest.Manifest, decisions: Sequence[Decision], output: Path, source: str
) -> tuple[WrittenManifest, ManifestDraft]:
    """A new manifest, with the decisions carried out; rows in which nothing belongs together any more are left out."""
    output = resolve_output_path(output)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    items, counts = apply_decisions(table.rows, decisions)
    draft = ManifestDraft(items, Counter({"rows with an error": table.counts.unusable}))
    options = {"manifest": table.path.name, **{action: counts[action] for action in ACTIONS}}
    return write_manifest(draft, output, Origin(source, options, read_licence(table.path))), draft


def _replace_content(item: DraftItem, other: DraftItem, decision: Decision) -> DraftItem:
    if decision.modality != "text":
        path = other.files.get(decision.modality)
        if path is None:
            raise UsageError(f"row {item.id!r} should take the {decision.modality} of row {other.id!r}, which has none")
        files = {**item.files, decision.modality: path}
        segment = {"start": other.start, "end": other.end} if decision.modality == "audio" else {}
        return replace(item, files=files, **segment)
    if decision.caption is None:
        return replace(item, texts=other.texts)
    caption = decision.replacement_caption or 0
    return replace(
        item, texts=(*item.texts[: decision.caption], other.texts[caption], *item.texts[decision.caption + 1 :])
    )


def _remove_modality(item: DraftItem, modality: Modality) -> DraftItem:
    if modality == "text":
        return replace(item, texts=())
    return replace(item, files={name: path for name, path in item.files.items() if name != modality})


def decision_to_dict(decision: Decision) -> Mapping[str, Any]:
    """A decision as the review page keeps it, but for the action."""
    return {name: value for name, value in asdict(decision).items() if name != "action"}
