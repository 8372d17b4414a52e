"""An audit's review page, served with the files it shows and no others."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from urllib.parse import quote, unquote

from triptych.app.server.served_files import open_without_links
from triptych.data.cache import file_state

PAGE_NAMES = ("review.html", "index.html")
LINK_PATTERN = re.compile(r'"url":\s*("(?:[^"\\]|\\.)*")')  # as the page's own data has them


@dataclass(frozen=True)
class LinkedFile:
    """A file that the page links to: where it really lies, and which file it was when the page was read."""

    real_path: Path
    identity: tuple[int, str]


class ReviewFiles:
    """A folder that an audit has written; its page may lie far from the files it links to.

    Links in the page are relative to it. So the page is served under its whole path, where they lead to what they
    mean, and of everything else on the disk only those files are given out that the page itself links to.
    """

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        candidates = [path] if path.is_file() else [path / name for name in PAGE_NAMES]
        self.page = next((page for page in candidates if page.is_file()), candidates[0])
        self.folder = self.page.parent
        self._page_state = ""
        self._linked_files: dict[Path, LinkedFile] = {}
        with suppress(OSError):  # no page yet: it is read when it is asked for
            self._load_links()

    @property
    def url_path(self) -> str:
        """Where the page is, below /review."""
        return quote(self.page.as_posix())

    def open(self, name: str) -> tuple[Path, BufferedReader] | None:
        """A file by its whole path, open, if it is the page or something the page shows; nothing else beside it.

        A file that the page shows must be the one that was there when the page was read.
        """
        path = Path("/" + name.lstrip("/"))
        try:
            if path == self.page:
                return path, open_without_links(path)
            linked_file = self._load_links().get(path)
            if linked_file is None:
                return None
            file = open_without_links(linked_file.real_path)
        except (OSError, ValueError):
            return None
        if _file_identity(os.fstat(file.fileno())) != linked_file.identity:
            file.close()
            return None
        return path, file

    def _load_links(self) -> dict[Path, LinkedFile]:
        """Every file the page links to, by its path, read again when the page has changed."""
        with open_without_links(self.page) as page:
            state = file_state(os.fstat(page.fileno()))
            if self._page_state == state:
                return self._linked_files
            text = page.read().decode("utf-8", "replace")
        linked_files: dict[Path, LinkedFile] = {}
        for link in LINK_PATTERN.findall(text):
            path = Path(_normalise_path(self.folder / unquote(json.loads(link).partition("#")[0])))
            try:
                real_path = path.resolve(strict=True)
                linked_file = LinkedFile(real_path, _file_identity(real_path.stat()))
            except (OSError, ValueError):
                continue
            linked_files |= {path: linked_file, real_path: linked_file}
        self._linked_files, self._page_state = linked_files, state
        return linked_files


def _file_identity(status: os.stat_result) -> tuple[int, str]:
    return status.st_dev, file_state(status)


def _normalise_path(path: Path) -> str:
    """A path without its ups and downs, as browsers do it: without asking the disk."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1] or ["/"]
        else:
            parts.append(part)
    return str(Path(*parts))
