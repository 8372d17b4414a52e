"""Access to the files that the server sends or decodes. Each file is opened once, without following symbolic links.

Between a check and a read, a path can be replaced by another file (TOCTOU), but an open file handle cannot. All checks
therefore use `os.fstat` on the handle, and all reads use the same handle.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from urllib.parse import quote, unquote

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from triptych.app.server.errors import HTTPError
from triptych.data.cache import Cache, content_key, file_state
from triptych.errors import TriptychError
from triptych.media.limits import MAX_FILE_BYTES
from triptych.search.item import Item

FILE_CHANGED = "{name}: was deleted or changed since it was indexed; run `triptych index` again"
ROOT_MISSING = "{name}: the folder of the root {root} was not found; start the server with --root {root}=FOLDER"
MAX_CACHED_DIGESTS = 100_000  # content hashes kept in memory
PROC_FOLDER = Path("/proc")  # on Linux, links to the open files of a process
# O_NONBLOCK: opening a FIFO must not block. O_PATH: a folder needs no read permission. Missing flags are replaced.
FILE_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)
REVIEW_PAGE_NAMES = ("review.html", "index.html")
LINK_PATTERN = re.compile(r'"url":\s*("(?:[^"\\]|\\.)*")')  # links in the JSON data of a review page


class ContentNotHashedError(Exception):
    """Raised if only a hash of the content can decide whether a file changed since the file was indexed."""

    def __init__(self, entry: Item) -> None:
        super().__init__(entry.id)
        self.entry = entry


def open_without_links(path: Path) -> BufferedReader:
    """Open a regular file. Raise an OSError if the path contains a symbolic link or is not a regular file."""
    if not path.is_absolute() or ".." in path.parts:
        raise OSError(errno.ELOOP, "not a plain path", str(path))
    if os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd:
        folder = os.open(path.anchor, FOLDER_FLAGS)
        try:
            for part in path.parts[1:-1]:
                inner = os.open(part, FOLDER_FLAGS, dir_fd=folder)
                os.close(folder)
                folder = inner
            _check_regular(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path)
            handle = os.open(path.name, FILE_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
    else:  # Windows: open files and their folders cannot be replaced
        if Path(os.path.realpath(path)) != path:
            raise OSError(errno.ELOOP, "the path contains a symbolic link", str(path))
        handle = os.open(path, FILE_FLAGS)
    try:
        _check_regular(os.fstat(handle), path)
        return open(handle, "rb")  # noqa: PTH123 - a handle, not a path
    except BaseException:
        os.close(handle)
        raise


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


class IndexedFiles:
    """Opens the files of items, but only if their content has not changed since indexing.

    First, the state of the file (size, times, inode) is compared with the state at indexing. If the states differ, for
    example because the file was touched or restored, the content hashes are compared. A file behind a symbolic link is
    never hashed: it must be the same file that was indexed through that link.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._digests: dict[tuple[Path, int, str], str] = {}

    def open(self, entry: Item) -> BufferedReader:
        """Open an item's file. Raise an HTTPError (410) if it changed, ContentNotHashedError if a hash is needed."""
        file, is_linked = self._open_path(entry)
        try:
            self._check_content(entry, file, is_linked)
        except BaseException:
            file.close()
            raise
        return file

    def ensure_hashed(self, entry: Item) -> None:
        """Hash the content of an item's file unless its hash is cached."""
        try:
            self.open(entry).close()
        except ContentNotHashedError:
            self._hash_content(entry)

    def _hash_content(self, entry: Item) -> None:
        file, _ = self._open_path(entry)
        with file:
            before = self._identity(entry, file)
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:  # larger files are never indexed
                raise file_changed_error(entry)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if self._identity(entry, file) == before:
                self._cache_digest(before, digest)

    def _open_path(self, entry: Item) -> tuple[BufferedReader, bool]:
        """Return the open file, and whether its path contains a symbolic link."""
        path = item_path(entry)
        if not path.is_absolute():  # the folder of the root is not known
            raise file_changed_error(entry)
        try:
            try:
                return open_without_links(path), False
            except OSError as error:
                real_path = Path(os.path.realpath(path))
                if error.errno not in {errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.EMLINK} or real_path == path:
                    raise
                return open_without_links(real_path), True
        except (OSError, ValueError):
            raise file_changed_error(entry) from None

    def _check_content(self, entry: Item, file: BufferedReader, is_linked: bool) -> None:
        identity = self._identity(entry, file)
        digest = self._digests.get(identity)
        if digest is None:
            record = self._cache.lookup_file(item_path(entry))
            if record is not None and record.state == identity[2]:
                digest = record.content_hash
                self._cache_digest(identity, digest)
            else:
                # An indexed file whose size differs has other content, so it need not be hashed.
                has_other_size = record is not None and record.size != os.fstat(file.fileno()).st_size
                if is_linked or (record and has_other_size and self._matches_index(entry, record.content_hash)):
                    raise file_changed_error(entry)
                raise ContentNotHashedError(entry)
        if not self._matches_index(entry, digest):
            raise file_changed_error(entry)

    @staticmethod
    def _matches_index(entry: Item, digest: str) -> bool:
        return content_key(entry.source, digest).hex() == entry.content_hash

    @staticmethod
    def _identity(entry: Item, file: BufferedReader) -> tuple[Path, int, str]:
        status = os.fstat(file.fileno())
        return item_path(entry), status.st_dev, file_state(status)

    def _cache_digest(self, identity: tuple[Path, int, str], digest: str) -> None:
        while len(self._digests) >= MAX_CACHED_DIGESTS:
            self._digests.pop(next(iter(self._digests)), None)
        self._digests[identity] = digest


def item_path(entry: Item) -> Path:
    """Return the path of an item's file. Raise an HTTPError (404) for a text of a manifest."""
    path = entry.source.content
    if not isinstance(path, Path):
        raise HTTPError(404, f"{entry.id}: is a caption of a manifest and has no file")
    return path


def file_changed_error(entry: Item) -> HTTPError:
    """Return the error for a file that changed since it was indexed, or whose root is missing."""
    path = item_path(entry)
    root_name, *parts = (entry.location or "").split("/")
    if parts and (not path.is_absolute() or not path.parents[len(parts) - 1].is_dir()):
        return HTTPError(410, ROOT_MISSING.format(name=path.name, root=root_name))
    return HTTPError(410, FILE_CHANGED.format(name=path.name))


@contextmanager
def decodable_path(file: BufferedReader, path: Path) -> Iterator[Path]:
    """Yield a path at which decoders can read an open file. Error messages show the file's name instead.

    The path is in a private folder and keeps the suffix, which FFmpeg uses to detect formats. On Linux it is a symbolic
    link to the file handle in /proc, on macOS a copy of the file.
    """
    with tempfile.TemporaryDirectory(prefix="triptych-file-") as folder:
        decoder_path = Path(folder) / f"file{path.suffix}"
        proc_path = _proc_path(file)
        if proc_path is not None:
            decoder_path.symlink_to(proc_path)
        elif sys.platform == "win32":
            decoder_path = path  # on Windows, an open file cannot be replaced
        else:
            with decoder_path.open("xb") as copy:
                file.seek(0)
                shutil.copyfileobj(file, copy)
        try:
            yield decoder_path
        except TriptychError as error:
            raise type(error)(str(error).replace(str(decoder_path), path.name)) from error


def _proc_path(file: BufferedReader) -> Path | None:
    """Return the path of an open file in /proc, or None. Opening this path reads the same file from the start."""
    path = PROC_FOLDER / str(os.getpid()) / "fd" / str(file.fileno())
    return path if path.exists() else None


class OpenFileResponse(FileResponse):
    """Sends an open file or byte ranges of it, then closes the file."""

    def __init__(self, file: BufferedReader, path: Path, media_type: str | None, headers: dict[str, str]) -> None:
        self._file = file
        # Systems without /proc have /dev/fd.
        fallback_path = path if sys.platform == "win32" else Path(f"/dev/fd/{file.fileno()}")
        status = os.fstat(file.fileno())
        super().__init__(_proc_path(file) or fallback_path, media_type=media_type, headers=headers, stat_result=status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class LinkedFile:
    """A file that the review page links to: its real path, and its device and state when the page was read."""

    real_path: Path
    identity: tuple[int, str]


class ReviewFiles:
    """The review page of an audit and the files it links to.

    The links are relative and may leave the folder of the page. The page is therefore served under its full path.
    Apart from the page, only files that the page links to are served.
    """

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        candidates = [path] if path.is_file() else [path / name for name in REVIEW_PAGE_NAMES]
        self.page = next((page for page in candidates if page.is_file()), candidates[0])
        self.folder = self.page.parent
        self._page_state = ""
        self._linked_files: dict[Path, LinkedFile] = {}
        with suppress(OSError):  # the page may not exist yet; it is read at the first request
            self._load_links()

    @property
    def url_path(self) -> str:
        """The URL path of the page after /review."""
        return quote(self.page.as_posix())

    def open(self, name: str) -> tuple[Path, BufferedReader] | None:
        """Open the page or a file that the page links to, given its full path.

        Return None for any other file, and for a file that has changed since the page was read.
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
        """Return the files that the page links to, by path. Read the page again if it has changed."""
        with open_without_links(self.page) as page:
            state = file_state(os.fstat(page.fileno()))
            if self._page_state == state:
                return self._linked_files
            text = page.read().decode("utf-8", "replace")
        linked_files: dict[Path, LinkedFile] = {}
        for link in LINK_PATTERN.findall(text):
            # normpath removes ".." lexically, as browsers do.
            path = Path(os.path.normpath(self.folder / unquote(json.loads(link).partition("#")[0])))
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
