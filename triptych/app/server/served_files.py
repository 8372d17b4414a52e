"""Files that are given out or decoded: opened once without following links, judged and read by that one handle.

A path can be made to lead elsewhere between two looks at it; an open handle cannot. So whatever is checked of a file
is checked of the handle (`os.fstat`), and whatever is read is read from the same handle.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from triptych.app.server.problems import Refusal
from triptych.data.cache import Cache, content_key, file_state
from triptych.errors import TriptychError
from triptych.media.limits import MOST_BYTES
from triptych.search.entry import Entry

CHANGED = "{name}: has gone or changed since it was indexed; run `triptych index` again"
REMEMBERED = 100_000  # files whose contents' hashes are kept in memory
PROC = Path("/proc")  # where Linux shows the open files of processes
# A FIFO or a device must not block; O_PATH needs no permission to list a folder. Not every system has every flag.
FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


class UnknownContentError(Exception):
    """A file's content has to be hashed before it can be told whether it is what was indexed."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.id)
        self.entry = entry


def open_without_links(path: Path) -> BufferedReader:
    """Open a regular file; an OSError where any component of its path is a symbolic link, or it is no regular file."""
    if not path.is_absolute() or ".." in path.parts:
        raise OSError(errno.ELOOP, "not a plain path", str(path))
    if os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd:
        folder = os.open(path.anchor, FOLDER)
        try:
            for part in path.parts[1:-1]:
                inner = os.open(part, FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            _check_regular(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path)
            handle = os.open(path.name, FILE, dir_fd=folder)
        finally:
            os.close(folder)
    else:  # Windows: there an open file cannot be replaced, and neither can its folders
        if Path(os.path.realpath(path)) != path:
            raise OSError(errno.ELOOP, "a link is on the way", str(path))
        handle = os.open(path, FILE)
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
    """Opens the files of a collection's items, each only while its content is what was indexed.

    Usually the file's state (size, times, inode) tells: it is on record since indexing. A file with another state,
    such as one that was touched or copied back, is compared by its content. A file that is reached through a symbolic
    link is never read on suspicion: it must be the very file that was indexed through that link.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._digests: dict[tuple[Path, int, str], str] = {}

    def open(self, entry: Entry) -> BufferedReader:
        """The file of an item; a Refusal where it has changed, UnknownContentError where `learn` must read it first."""
        file, is_linked = self._opened(entry)
        try:
            self._check(entry, file, is_linked)
        except BaseException:
            file.close()
            raise
        return file

    def learn(self, entry: Entry) -> None:
        """Hash the content of an item's file where that is not known yet; remember it with the file's state."""
        try:
            self.open(entry).close()
        except UnknownContentError:
            self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        file, _ = self._opened(entry)
        with file:
            before = self._identity(entry, file)
            if os.fstat(file.fileno()).st_size > MOST_BYTES:  # larger than anything that is indexed
                raise changed(entry)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if self._identity(entry, file) == before:
                self._remember(before, digest)

    def _opened(self, entry: Entry) -> tuple[BufferedReader, bool]:
        """The file, and whether its path leads through a link."""
        path = path_of(entry)
        try:
            try:
                return open_without_links(path), False
            except OSError as error:
                real = Path(os.path.realpath(path))
                if error.errno not in {errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.EMLINK} or real == path:
                    raise
                return open_without_links(real), True
        except (OSError, ValueError):
            raise changed(entry) from None

    def _check(self, entry: Entry, file: BufferedReader, is_linked: bool) -> None:
        identity = self._identity(entry, file)
        digest = self._digests.get(identity)
        if digest is None:
            record = self._cache.recorded(path_of(entry))
            if record is not None and record.state == identity[2]:
                digest = record.digest
                self._remember(identity, digest)
            elif is_linked:
                raise changed(entry)
            elif record is not None and self._is_right(entry, record.digest) and record.size != _size(file):
                raise changed(entry)  # another length is another content
            else:
                raise UnknownContentError(entry)
        if not self._is_right(entry, digest):
            raise changed(entry)

    @staticmethod
    def _is_right(entry: Entry, digest: str) -> bool:
        return content_key(entry.item.source, digest).hex() == entry.content

    @staticmethod
    def _identity(entry: Entry, file: BufferedReader) -> tuple[Path, int, str]:
        status = os.fstat(file.fileno())
        return path_of(entry), status.st_dev, file_state(status)

    def _remember(self, identity: tuple[Path, int, str], digest: str) -> None:
        while len(self._digests) >= REMEMBERED:
            self._digests.pop(next(iter(self._digests)), None)
        self._digests[identity] = digest


def path_of(entry: Entry) -> Path:
    """The path of an item's file; 404 where it is a text that has none."""
    path = entry.item.source.content
    if not isinstance(path, Path):
        raise Refusal(404, f"{entry.id}: is a text of a manifest; it has no file")
    return path


def changed(entry: Entry) -> Refusal:
    """The answer where a file is no longer what was indexed."""
    return Refusal(410, CHANGED.format(name=path_of(entry).name))


def _size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


@contextmanager
def decodable(file: BufferedReader, path: Path) -> Iterator[Path]:
    """A path for decoders that leads to an open file whatever becomes of its name; errors speak of the file's own name.

    It lies in a private folder and has the file's ending, by which FFmpeg judges what it is not sure of. Where the
    system shows open files by path (Linux) it is a link to the handle, elsewhere a copy.
    """
    with tempfile.TemporaryDirectory(prefix="triptych-file-") as folder:
        place = Path(folder) / f"file{path.suffix}"
        shown = _shown(file)
        if shown is not None:
            place.symlink_to(shown)
        elif sys.platform == "win32":
            place = path  # cannot be replaced while it is open
        else:
            with place.open("xb") as copy:
                file.seek(0)
                shutil.copyfileobj(file, copy)
        try:
            yield place
        except TriptychError as error:
            raise type(error)(str(error).replace(str(place), path.name)) from error


def _shown(file: BufferedReader) -> Path | None:
    """Where Linux shows an open file: opened there, it is the same file, read from its beginning."""
    place = PROC / str(os.getpid()) / "fd" / str(file.fileno())
    return place if place.exists() else None


class OpenFileResponse(FileResponse):
    """Sends an open file, whole or the ranges asked for, and closes it."""

    def __init__(self, file: BufferedReader, path: Path, media_type: str | None, headers: dict[str, str]) -> None:
        self._file = file
        # /dev/fd is what other systems than Linux have: another handle on the same file.
        elsewhere = path if sys.platform == "win32" else Path(f"/dev/fd/{file.fileno()}")
        super().__init__(
            _shown(file) or elsewhere,
            media_type=media_type,
            headers=headers,
            stat_result=os.fstat(file.fileno()),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
