"""What a person, or the audit itself, decides of suspects, and the manifest that comes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from triptych.contracts import MODALITIES, Modality
from triptych.data import manifest
from triptych.data.damage import item_of
from triptych.data.manifest import Row
from triptych.data.sources.draft import Draft, Item
from triptych.data.sources.output import Made, Origin, check_output, licence_of, write
from triptych.errors import UsageError, unknown

FORM = 1
Action = Literal["keep", "reject", "swap"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class Decision:
    """What becomes of one thing in one row: kept, taken out, or replaced by that of another row."""

    action: Action
    row: str
    modality: Modality
    caption: int | None = None  # one of the row's captions; None for all, and for sounds and pictures
    taken_from: str | None = None
    taken_caption: int | None = None


def read_decisions(path: Path, audit: str, undecided: Action = "keep") -> list[Decision]:
    """The decisions that the review page saved, and the one for what is still open there.

    Those about another manifest are refused.
    """
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as decisions ({error}); save them from the review page") from error
    lists = [told.get(name) for name in ("decisions", "undecided")] if isinstance(told, dict) else [None]
    if not isinstance(told, dict) or told.get("form") != FORM or not all(isinstance(some, list) for some in lists):
        raise UsageError(f"{path}: holds no decisions; save them from the review page")
    if told.get("audit") != audit:
        raise UsageError(
            f"{path}: these decisions are about another manifest, or about this one before it was changed "
            f"({told.get('manifest')}, {told.get('audit')}; this one is {audit}); audit it again"
        )
    still_open = [_decision(path, one, undecided) for one in told["undecided"]]
    return [_decision(path, one) for one in told["decisions"]] + still_open


def _decision(path: Path, told: Any, action: Action | None = None) -> Decision:
    if not isinstance(told, dict):
        raise UsageError(f"{path}: a decision should be an object, is {str(told)[:40]}")
    told = {name: value for name, value in told.items() if name != "key"} | ({"action": action} if action else {})
    try:
        found = Decision(**told)
    except TypeError as error:
        raise UsageError(f"{path}: a decision has strange or missing fields: {error}") from error
    for field, value, known in (("action", found.action, ACTIONS), ("modality", found.modality, MODALITIES)):
        if value not in known:
            raise UsageError(f"{path}: {unknown(field, str(value), known)}")
    whole = all(number is None or type(number) is int for number in (found.caption, found.taken_caption))
    if not whole or not isinstance(found.row, str) or (found.action == "swap") > isinstance(found.taken_from, str):
        raise UsageError(f"{path}: the decision about row {str(found.row)[:60]!r} is not whole")
    return found


def decided(rows: Sequence[Row], decisions: Iterable[Decision]) -> tuple[list[Item], Counter[str]]:
    """The rows after the decisions, and how many of each action there were."""
    before = {row.id: item_of(row) for row in rows}
    after, gone, counts = dict(before), dict[str, set[int]](), Counter[str]()
    for one in decisions:
        counts[one.action] += 1
        _check_place(before, one.row, one.modality, one.caption)
        if one.taken_from is not None:
            _check_place(before, one.taken_from, one.modality, one.taken_caption)
        if one.action == "swap":
            after[one.row] = _swapped(after[one.row], before[one.taken_from or ""], one)
        elif one.action == "reject" and one.caption is not None:
            gone.setdefault(one.row, set()).add(one.caption)
        elif one.action == "reject":
            after[one.row] = _without(after[one.row], one.modality)
    for name, captions in gone.items():
        texts = tuple(text for i, text in enumerate(after[name].texts) if i not in captions)
        after[name] = replace(after[name], texts=texts)
    return list(after.values()), counts


def _check_place(items: Mapping[str, Item], row: str, modality: Modality, caption: int | None) -> None:
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


def write_decided(
    table: manifest.Manifest, decisions: Sequence[Decision], output: Path, source: str
) -> tuple[Made, Draft]:
    """A new manifest, with the decisions carried out; rows in which nothing belongs together any more are left out."""
    output = check_output(output)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    items, counts = decided(table.rows, decisions)
    draft = Draft(items, Counter({"rows with an error": table.counts.unusable}))
    options = {"manifest": table.path.name, **{action: counts[action] for action in ACTIONS}}
    return write(draft, output, Origin(source, options, licence_of(table.path))), draft


def _swapped(item: Item, other: Item, how: Decision) -> Item:
    if how.modality != "text":
        path = other.files.get(how.modality)
        if path is None:
            raise UsageError(f"row {item.id!r} should take the {how.modality} of row {other.id!r}, which has none")
        files = {**item.files, how.modality: path}
        moment = {"start": other.start, "end": other.end} if how.modality == "audio" else {}
        return replace(item, files=files, **moment)
    if how.caption is None:
        return replace(item, texts=other.texts)
    number = how.taken_caption or 0
    return replace(item, texts=(*item.texts[: how.caption], other.texts[number], *item.texts[how.caption + 1 :]))


def _without(item: Item, modality: Modality) -> Item:
    if modality == "text":
        return replace(item, texts=())
    return replace(item, files={kind: path for kind, path in item.files.items() if kind != modality})


def told(decision: Decision) -> Mapping[str, Any]:
    """A decision as the review page keeps it, but for the action."""
    return {name: value for name, value in asdict(decision).items() if name != "action"}
