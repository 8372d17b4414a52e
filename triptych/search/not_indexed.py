"""The list of files that a run of indexing left out, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from triptych.csv_files import escape_cell
from triptych.files import remove_stale_temp_files, write_text
from triptych.interfaces import Source
from triptych.search.items import SkippedPath


def write_not_indexed(path: Path, failures: Mapping[Source, str], skipped: Iterable[SkippedPath]) -> bool:
    """Replace the list as a whole, or remove it where nothing was left out; True where there is one now.

    One line for each file: its path, a tab, the reason. Characters that cannot be printed are escaped,
    and no cell is a formula to a spreadsheet program.
    """
    rows = [(_format_name(source), message.removeprefix(f"{source.content}: ")) for source, message in failures.items()]
    rows += [(_format_name(one.path), one.reason) for one in skipped]
    lines = dict.fromkeys(f"{_format_cell(name)}\t{_format_cell(reason)}" for name, reason in rows)
    remove_stale_temp_files(path.parent, [path.name])
    if not lines:
        path.unlink(missing_ok=True)
        return False
    write_text(path, "".join(f"{line}\n" for line in ("file\treason", *sorted(lines))))
    return True


def _format_name(source_or_path: Source | Path) -> str:
    """A path with its moment; bytes that are not UTF-8 as \\xNN."""
    if isinstance(source_or_path, Source) and isinstance(source_or_path.content, str):
        return str(source_or_path)
    return os.fsencode(str(source_or_path)).decode("utf-8", "backslashreplace")


def _format_cell(text: str) -> str:
    return escape_cell("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
