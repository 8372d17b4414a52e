"""A local copy of a data set to a manifest: where it goes, what may be in it, and the work from end to end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.data.sources.draft import Dataset, Draft
from triptych.data.sources.local import Copy
from triptych.data.sources.output import Made, Origin, check_output, room_of, write
from triptych.errors import UsageError
from triptych.progress import progress


def default_output(source: str, copy: Path) -> Path:
    """manifest.csv in the copy's own folder; where that cannot be written, SOURCE/manifest.csv in the current one."""
    # The mode as well as our rights: root may write anywhere, but what is read-only for all is so on purpose.
    if copy.is_dir() and copy.stat().st_mode & 0o222 and os.access(copy, os.W_OK):
        return copy / "manifest.csv"
    return Path(source) / "manifest.csv"


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
    path = check_output(output or default_output(source, place))
    copy = Copy(source, place, room_of(path))
    draft = _keep_inside(dataset.draft(copy, options or {}), copy)
    total = sum(len(item.files) for item in draft.items if (item.split or "").startswith("test"))
    with progress("hashing the test set", total, show and total > 0) as bar:
        made = write(draft, path, Origin(source, options or {}, dataset.licence), bar.advance)
    return made, draft


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
