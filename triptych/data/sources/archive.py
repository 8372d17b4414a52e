"""Archives of strangers, unpacked without letting them write anywhere else, or without end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from triptych.data.manifest_problems import to_printable
from triptych.errors import ManifestError
from triptych.files import atomic_write

MAX_MEMBERS = 2_000_000  # of one archive
MAX_MEMBER_BYTES = 2_000_000_000  # of one member
MAX_TOTAL_BYTES = 500_000_000_000  # of one archive
# Sounds and pictures are compressed already and shrink little; captions and silence shrink to a few percent.
MAX_EXPANSION_RATIO = 100  # times the size of the archive that its content may have, and …
EXPANSION_ALLOWANCE = 10_000_000  # … so many bytes on top of that, for small archives
MAX_HEADER_BYTES = 256 * 1024  # bytes of all headers before one member: long names, pax records, sparse maps
CHUNK = 1 << 16
AR_MAGIC = b"!<arch>\n"
ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError)


def max_unpacked_bytes(archive: Path) -> int:
    """How many bytes may be unpacked from an archive, by its own size."""
    return MAX_EXPANSION_RATIO * archive.stat().st_size + EXPANSION_ALLOWANCE


def expansion_error(archive: Path) -> ManifestError:
    """The error for an archive with more content than that."""
    return ManifestError(
        f"{archive}: unpacks to more than {max_unpacked_bytes(archive):,} bytes, {MAX_EXPANSION_RATIO} times its size; "
        "nothing more is unpacked. If you trust it, unpack it yourself and give the folder"
    )


def unpack(archive: Path, folder: Path, should_unpack: Callable[[PurePosixPath], bool]) -> list[Path]:
    """Write the wanted files of a tar archive (or of a .deb package) below a folder, in the archive's order.

    A wanted member that climbs out, is a link, a device or sparse, comes twice or is too large stops everything: an
    archive with one of them was not made in good faith. So does content far larger than the archive, and a header of
    more than LONGEST_HEADER bytes. Files that are there already with the same size are kept.
    """
    try:
        with archive.open("rb") as file:
            payload = _seek_deb_payload(archive, file) if archive.suffix == ".deb" else file
            stream = _BoundedStream(archive, _decompress(payload), max_unpacked_bytes(archive))
            with tarfile.open(fileobj=stream, mode="r:") as members:
                return _unpack_members(archive, members, stream, folder.resolve(), should_unpack)
    except ARCHIVE_ERRORS as error:
        raise _unreadable_error(archive, error) from error
    except OSError as error:
        if error.errno is not None:  # of the disk; those of the gzip and bz2 decoders have no number
            raise
        raise _unreadable_error(archive, error) from error


def _unreadable_error(archive: Path, error: Exception) -> ManifestError:
    return ManifestError(f"{archive}: cannot be read as a tar archive: {to_printable(error)}; is it whole?")


def _decompress(file: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    """The content of a file that may be compressed, by its first bytes."""
    start = file.tell()
    magic = file.read(6)
    file.seek(start)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(file)
    if magic.startswith(b"BZh"):
        return bz2.open(file)
    if magic.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return lzma.open(file)
    return file


class _BoundedStream(io.BufferedIOBase):
    """A stream that is read forwards only, up to a total size, and no more at a time than was allowed before.

    tarfile reads headers into memory whole, whatever size they claim: `allow` before each member bounds that.
    """

    def __init__(self, archive: Path, content: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self.archive, self._content, self._limit = archive, content, limit
        self._position, self._read_allowance = 0, MAX_HEADER_BYTES

    def allow(self, size: int) -> None:
        """Set how many bytes may be read until the next call; skipped bytes do not count."""
        self._read_allowance = size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read exactly so many bytes, fewer only at the end."""
        if size is None or size < 0 or size > self._read_allowance:
            raise ManifestError(
                f"{self.archive}: a header of more than {MAX_HEADER_BYTES:,} bytes; nothing more is unpacked"
            )
        self._read_allowance -= size
        return self._advance(size)

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        """Skip to a later place, or to the end if that comes first."""
        if whence != io.SEEK_SET or position < self._position:
            raise tarfile.ReadError("members overlap")
        while self._position < position and self._advance(min(CHUNK, position - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        """The place in the unpacked content."""
        return self._position

    def _advance(self, size: int) -> bytes:
        content = self._content.read(size)
        self._position += len(content)
        if self._position > self._limit:
            raise expansion_error(self.archive)
        return content


def _unpack_members(
    archive: Path,
    members: tarfile.TarFile,
    stream: _BoundedStream,
    folder: Path,
    should_unpack: Callable[[PurePosixPath], bool],
) -> list[Path]:
    written_paths: dict[Path, None] = {}
    total = count = 0
    while (member := _next_member(members, stream)) is not None:
        count += 1
        if count > MAX_MEMBERS:
            raise ManifestError(f"{archive}: has more than {MAX_MEMBERS:,} members; split it")
        name = PurePosixPath(member.name)
        if member.isdir() or not should_unpack(name):
            continue
        target = _target_path(archive, member, name, folder)
        total += member.size
        if member.size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
            raise ManifestError(
                f"{archive}: {to_printable(member.name)} is too large ({member.size:,} bytes, {total:,} in all)"
            )
        if target in written_paths:
            raise ManifestError(f"{archive}: holds {to_printable(member.name)} twice")
        written_paths[target] = None
        if not (target.is_file() and target.stat().st_size == member.size):
            stream.allow(member.size)
            source = members.extractfile(member)
            with atomic_write(target, durable=False) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source or io.BytesIO(), file, CHUNK)
    return list(written_paths)


def _next_member(members: tarfile.TarFile, stream: _BoundedStream) -> tarfile.TarInfo | None:
    """The next member, without keeping those before it, and with bounded headers."""
    stream.allow(MAX_HEADER_BYTES)
    member = members.next()
    # tarfile would keep all of them, with their headers.
    members.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
    if sum(len(key) + len(value) for key, value in members.pax_headers.items()) > MAX_HEADER_BYTES:
        raise ManifestError(f"{stream.archive}: global headers of more than {MAX_HEADER_BYTES:,} bytes")
    return member


def _target_path(archive: Path, member: tarfile.TarInfo, name: PurePosixPath, folder: Path) -> Path:
    """Where a member goes, if it may go anywhere."""
    if not member.isreg():
        raise ManifestError(
            f"{archive}: {to_printable(member.name)} is a link or a device, not a file; nothing more is unpacked"
        )
    if member.issparse():  # a few bytes of it claim gigabytes of zeros
        raise ManifestError(
            f"{archive}: {to_printable(member.name)} is a sparse file; nothing more is unpacked. Pack it without --sparse"
        )
    target = folder / name
    escapes_folder = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    # A link that lies in the folder already would lead out as well.
    if escapes_folder or not name.name or not target.parent.resolve().is_relative_to(folder) or target.is_symlink():
        raise ManifestError(
            f"{archive}: {to_printable(member.name)} would be written outside {folder}; nothing more is unpacked"
        )
    return target


def _seek_deb_payload(archive: Path, file: IO[bytes]) -> IO[bytes]:
    """The part of a Debian package that holds its files; leaves the file at its beginning."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ManifestError(f"{archive}: is not a Debian package")
    while header := file.read(60):
        name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), header[48:58].strip()
        if len(header) < 60 or not size.isdigit():
            break
        if name.endswith(".zst"):
            raise ManifestError(
                f"{archive}: is packed with zstd, which we cannot read; unpack it with `dpkg-deb -x`, give the folder"
            )
        if name.startswith("data.tar"):
            return file  # tar knows its own end; what follows is never read
        file.seek(int(size) + int(size) % 2, io.SEEK_CUR)
    raise ManifestError(f"{archive}: no data.tar in this package; is it whole?")
