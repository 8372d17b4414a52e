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

from triptych.app.server.errors import HTTPError
from triptych.data.cache import Cache, content_key, file_state
from triptych.errors import TriptychError
from triptych.media.limits import MAX_FILE_BYTES
from triptych.search.entry import StoredItem

FILE_CHANGED = "{name}: has gone or changed since it was indexed; run `triptych index` again"
MAX_CACHED_DIGESTS = 100_000  # files whose contents' hashes are kept in memory
PROC_FOLDER = Path("/proc")  # where Linux shows the open files of processes
# A FIFO or a device must not block; O_PATH needs no permission to list a folder. Not every system has every flag.
FILE_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


class ContentNotHashedError(Exception):
    """A file's content has to be hashed before it can be told whether it is what was indexed."""

    def __init__(self, entry: StoredItem) -> None:
        super().__init__(entry.id)
        self.entry = entry


def open_without_links(path: Path) -> BufferedReader:
    """Open a regular file; an OSError where any component of its path is a symbolic link, or it is no regular file."""
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
    else:  # Windows: there an open file cannot be replaced, and neither can its folders
        if Path(os.path.realpath(path)) != path:
            raise OSError(errno.ELOOP, "a link is on the way", str(path))
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
    """Opens the files of a collection's items, each only while its content is what was indexed.

    Usually the file's state (size, times, inode) tells: it is on record since indexing. A file with another state,
    such as one that was touched or copied back, is compared by its content. A file that is reached through a symbolic
    link is never read on suspicion: it must be the very file that was indexed through that link.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._digests: dict[tuple[Path, int, str], str] = {}

    def open(self, entry: StoredItem) -> BufferedReader:
        """The file of an item; a Refusal where it has changed, UnknownContentError where `learn` must read it first."""
        file, is_linked = self._open_path(entry)
        try:
            self._check_content(entry, file, is_linked)
        except BaseException:
            file.close()
            raise
        return file

    def ensure_hashed(self, entry: StoredItem) -> None:
        """Hash the content of an item's file where that is not known yet; remember it with the file's state."""
        try:
            self.open(entry).close()
        except ContentNotHashedError:
            self._hash_content(entry)

    def _hash_content(self, entry: StoredItem) -> None:
        file, _ = self._open_path(entry)
        with file:
            before = self._identity(entry, file)
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:  # larger than anything that is indexed
                raise file_changed_error(entry)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if self._identity(entry, file) == before:
                self._cache_digest(before, digest)

    def _open_path(self, entry: StoredItem) -> tuple[BufferedReader, bool]:
        """The file, and whether its path leads through a link."""
        path = item_path(entry)
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

    def _check_content(self, entry: StoredItem, file: BufferedReader, is_linked: bool) -> None:
        identity = self._identity(entry, file)
        digest = self._digests.get(identity)
        if digest is None:
            record = self._cache.lookup_file(item_path(entry))
            if record is not None and record.state == identity[2]:
                digest = record.content_hash
                self._cache_digest(identity, digest)
            elif is_linked:
                raise file_changed_error(entry)
            elif (
                record is not None
                and self._matches_index(entry, record.content_hash)
                and record.size != _file_size(file)
            ):
                raise file_changed_error(entry)  # another length is another content
            else:
                raise ContentNotHashedError(entry)
        if not self._matches_index(entry, digest):
            raise file_changed_error(entry)

    @staticmethod
    def _matches_index(entry: StoredItem, digest: str) -> bool:
        return content_key(entry.item.source, digest).hex() == entry.content_hash

    @staticmethod
    def _identity(entry: StoredItem, file: BufferedReader) -> tuple[Path, int, str]:
        status = os.fstat(file.fileno())
        return item_path(entry), status.st_dev, file_state(status)

    def _cache_digest(self, identity: tuple[Path, int, str], digest: str) -> None:
        while len(self._digests) >= MAX_CACHED_DIGESTS:
            self._digests.pop(next(iter(self._digests)), None)
        self._digests[identity] = digest


def item_path(entry: StoredItem) -> Path:
    """The path of an item's file; 404 where it is a text that has none."""
    path = entry.item.source.content
    if not isinstance(path, Path):
        raise HTTPError(404, f"{entry.id}: is a text of a manifest; it has no file")
    return path


def file_changed_error(entry: StoredItem) -> HTTPError:
    """The answer where a file is no longer what was indexed."""
    return HTTPError(410, FILE_CHANGED.format(name=item_path(entry).name))


def _file_size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


@contextmanager
def decodable_path(file: BufferedReader, path: Path) -> Iterator[Path]:
    """A path for decoders that leads to an open file whatever becomes of its name; errors speak of the file's own name.

    It lies in a private folder and has the file's ending, by which FFmpeg judges what it is not sure of. Where the
    system shows open files by path (Linux) it is a link to the handle, elsewhere a copy.
    """
    with tempfile.TemporaryDirectory(prefix="triptych-file-") as folder:
        decoder_path = Path(folder) / f"file{path.suffix}"
        proc_path = _proc_path(file)
        if proc_path is not None:
            decoder_path.symlink_to(proc_path)
        elif sys.platform == "win32":
            decoder_path = path  # cannot be replaced while it is open
        else:
            with decoder_path.open("xb") as copy:
                file.seek(0)
                shutil.copyfileobj(file, copy)
        try:
            yield decoder_path
        except TriptychError as error:
            raise type(error)(str(error).replace(str(decoder_path), path.name)) from error


def _proc_path(file: BufferedReader) -> Path | None:
    """Where Linux shows an open file: opened there, it is the same file, read from its beginning."""
    path = PROC_FOLDER / str(os.getpid()) / "fd" / str(file.fileno())
    return path if path.exists() else None


class OpenFileResponse(FileResponse):
    """Sends an open file, whole or the ranges asked for, and closes it."""

    def __init__(self, file: BufferedReader, path: Path, media_type: str | None, headers: dict[str, str]) -> None:
        self._file = file
        # /dev/fd is what other systems than Linux have: another handle on the same file.
        fallback_path = path if sys.platform == "win32" else Path(f"/dev/fd/{file.fileno()}")
        super().__init__(
            _proc_path(file) or fallback_path,
            media_type=media_type,
            headers=headers,
            stat_result=os.fstat(file.fileno()),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
