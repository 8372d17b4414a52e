"""The list of files that a run of indexing left out, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from triptych.contracts import Source
from triptych.csv_files import protect_cell
from triptych.files import sweep, write_text
from triptych.search.items import Skipped


def write_list(path: Path, failures: Mapping[Source, str], skipped: Iterable[Skipped]) -> bool:
    """Replace the list as a whole, or remove it where nothing was left out; True where there is one now.

    One line for each file: its path, a tab, the reason. Characters that cannot be printed are escaped,
    and no cell is a formula to a spreadsheet program.
    """
    rows = [(_name(source), message.removeprefix(f"{source.content}: ")) for source, message in failures.items()]
    rows += [(_name(one.path), one.reason) for one in skipped]
    lines = dict.fromkeys(f"{_cell(name)}\t{_cell(reason)}" for name, reason in rows)
    sweep(path.parent, [path.name])
    if not lines:
        path.unlink(missing_ok=True)
        return False
    write_text(path, "".join(f"{line}\n" for line in ("file\treason", *sorted(lines))))
    return True


def _name(what: Source | Path) -> str:
    """A path with its moment; bytes that are not UTF-8 as \\xNN."""
    if isinstance(what, Source) and isinstance(what.content, str):
        return str(what)
    return os.fsencode(str(what)).decode("utf-8", "backslashreplace")


def _cell(text: str) -> str:
    return protect_cell("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
