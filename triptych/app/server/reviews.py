"""An audit's review page, served with the files it shows and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote, unquote

PAGES = ("review.html", "index.html")
LINK = re.compile(r'"url":\s*("(?:[^"\\]|\\.)*")')  # as the page's own data has them


class Review:
    """A folder that an audit has written; its page may lie far from the files it links to.

    Links in the page are relative to it. So the page is served under its whole path, where they lead to what they
    mean, and of everything else on the disk only those files are given out that the page itself links to.
    """

    def __init__(self, place: Path) -> None:
        place = place.resolve()
        pages = [place] if place.is_file() else [place / name for name in PAGES]
        self.page = next((page for page in pages if page.is_file()), pages[0])
        self.folder = self.page.parent
        self._read: tuple[float, frozenset[Path]] = (-1.0, frozenset())

    @property
    def address(self) -> str:
        """Where the page is, below /review."""
        return quote(self.page.as_posix())

    def find(self, name: str) -> Path | None:
        """A file by its whole path, if it is the page or something the page shows; nothing else beside it."""
        try:
            asked = Path("/" + name.lstrip("/"))
            file = asked.resolve()
            if ".." in asked.parts or not file.is_file():
                return None
        except (OSError, ValueError):
            return None
        return file if asked == self.page or not self._linked().isdisjoint((asked, file)) else None

    def _linked(self) -> frozenset[Path]:
        """Every file the page links to, read again when the page has changed."""
        changed = self.page.stat().st_mtime
        if self._read[0] != changed:
            found = set()
            for link in LINK.findall(self.page.read_text(encoding="utf-8", errors="replace")):
                path = unquote(json.loads(link).partition("#")[0])
                found.add(Path(_tidy(self.folder / path)))
            self._read = changed, frozenset(found)
        return self._read[1]


def _tidy(path: Path) -> str:
    """A path without its ups and downs, as browsers do it: without asking the disk."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1] or ["/"]
        else:
            parts.append(part)
    return str(Path(*parts))
