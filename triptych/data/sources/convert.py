"""A local copy of a data set to a manifest: where it goes, what may be in it, and the work from end to end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.data.sources.draft import Dataset, Draft, divide
from triptych.data.sources.local import Copy
from triptych.data.sources.output import Made, Origin, check_output, room_of, usable, write
from triptych.errors import UsageError
from triptych.progress import progress


def default_output(source: str, dataset: Dataset, place: Path) -> Path:
    """Where a manifest goes without -o: manifest.csv in the folder of a data set, NAME-manifest.csv beside one's own.

    Where that cannot be written it goes to the current folder.
    """
    if not dataset.is_personal:
        return place / "manifest.csv" if _is_writable(place) else Path(source) / "manifest.csv"
    root, here = place.resolve(), Path.cwd().resolve()
    name = f"{root.name or source}-manifest.csv"
    if here in root.parents:
        return Path(name)
    # Beside the files and not here: a manifest finds its files only in its own folder and below.
    if _is_writable(root.parent) and root.parent != root:
        return root.parent / name
    if here == root or root in here.parents:
        raise UsageError(
            f"nothing is written among your files in {place}, nor can it be beside them; say where with -o"
        )
    return Path(name)


def _is_writable(folder: Path) -> bool:
    # The mode as well as our rights: root may write anywhere, but what is read-only for all is so on purpose.
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def convert(
    source: str,
    dataset: Dataset,
    folder: Path | None,
    output: Path | None = None,
    options: Mapping[str, Any] | None = None,
    show: bool = True,
) -> tuple[Made, Draft]:
    """Turn a copy into a manifest and its sidecar; gives what was written and what the source had to say."""
    place = folder or dataset.home
    if place is None:
        raise UsageError(
            f"give the folder of your copy: triptych data {source} FOLDER; it expects {dataset.expects[0]}"
        )
    path = check_output(output or default_output(source, dataset, place))
    copy = Copy(source, place, room_of(path))
    draft = _divide(usable(_keep_inside(dataset.draft(copy, options or {}), copy)), source)
    total = sum(len(item.files) for item in draft.items if (item.split or "").startswith("test"))
    with progress("hashing the test set", total, show and total > 0) as bar:
        made = write(draft, path, Origin(source, options or {}, dataset.licence), bar.advance)
    return made, draft


def _divide(draft: Draft, source: str) -> Draft:
    """Divide the rows into splits, where the data set has none of its own."""
    if draft.units is None or not draft.items:
        return draft
    without = sum(item.split is None for item in draft.items)
    if without < len(draft.items):
        note = [f"{without} rows lie in no folder of a split and have none"] if without else []
        return replace(draft, notes=[*draft.notes, *note])
    items = divide(draft.items, source, draft.units)
    counts = Counter(item.split for item in items)
    parts = [f"{name} {counts[name]} ({counts[name] / len(items):.0%})" for name in ("train", "valid", "test")]
    note = f"no split is named, so the rows were divided at random, the same at every run: {', '.join(parts)}"
    return replace(draft, items=items, notes=[*draft.notes, note])


def _keep_inside(draft: Draft, copy: Copy) -> Draft:
    """Without files that a copy's tables name outside the copy: a table from somebody else must not lead elsewhere."""
    roots = tuple(os.path.abspath(root) for root in (copy.path, copy.room))  # noqa: PTH100 - links of the user may stay
    left_out = Counter(draft.left_out)
    items = []
    for item in draft.items:
        inside = {column: path for column, path in item.files.items() if _is_below(path, roots)}
        left_out.update(f"{column} files that lie outside the copy" for column in item.files.keys() - inside.keys())
        items.append(replace(item, files=inside))
    return replace(draft, items=items, left_out=left_out)


def _is_below(path: Path, roots: tuple[str, ...]) -> bool:
    plain = Path(os.path.abspath(path))  # noqa: PTH100
    return any(plain.is_relative_to(root) for root in roots)
