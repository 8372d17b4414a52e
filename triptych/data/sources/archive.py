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

from triptych.data.problems import shown
from triptych.errors import ManifestError
from triptych.files import replacing

MOST_MEMBERS = 2_000_000  # of one archive
MOST_BYTES = 2_000_000_000  # of one member
MOST_IN_ALL = 500_000_000_000  # of one archive
# Sounds and pictures are compressed already and shrink little; captions and silence shrink to a few percent.
MOST_EXPANSION = 100  # times the size of the archive that its content may have, and …
FREE_BYTES = 10_000_000  # … so many bytes on top of that, for small archives
LONGEST_HEADER = 256 * 1024  # bytes of all headers before one member: long names, pax records, sparse maps
CHUNK = 1 << 16
AR = b"!<arch>\n"
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError)


def most_content(archive: Path) -> int:
    """How many bytes may be unpacked from an archive, by its own size."""
    return MOST_EXPANSION * archive.stat().st_size + FREE_BYTES


def too_much_content(archive: Path) -> ManifestError:
    """The error for an archive with more content than that."""
    return ManifestError(
        f"{archive}: unpacks to more than {most_content(archive):,} bytes, {MOST_EXPANSION} times its size; "
        "nothing more is unpacked. If you trust it, unpack it yourself and give the folder"
    )


def unpack(archive: Path, into: Path, wanted: Callable[[PurePosixPath], bool]) -> list[Path]:
    """Write the wanted files of a tar archive (or of a .deb package) below a folder, in the archive's order.

    A wanted member that climbs out, is a link, a device or sparse, comes twice or is too large stops everything: an
    archive with one of them was not made in good faith. So does content far larger than the archive, and a header of
    more than LONGEST_HEADER bytes. Files that are there already with the same size are kept.
    """
    try:
        with archive.open("rb") as file:
            packed = _package_content(archive, file) if archive.suffix == ".deb" else file
            stream = _BoundedStream(archive, _decompress(packed), most_content(archive))
            with tarfile.open(fileobj=stream, mode="r:") as members:
                return _unpack(archive, members, stream, into.resolve(), wanted)
    except DAMAGED as error:
        raise _unreadable(archive, error) from error
    except OSError as error:
        if error.errno is not None:  # of the disk; those of the gzip and bz2 decoders have no number
            raise
        raise _unreadable(archive, error) from error


def _unreadable(archive: Path, error: Exception) -> ManifestError:
    return ManifestError(f"{archive}: cannot be read as a tar archive: {shown(error)}; is it whole?")


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

    def __init__(self, archive: Path, content: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self.archive, self._content, self._most = archive, content, most
        self._place, self._allowed = 0, LONGEST_HEADER

    def allow(self, size: int) -> None:
        """Set how many bytes may be read until the next call; skipped bytes do not count."""
        self._allowed = size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read exactly so many bytes, fewer only at the end."""
        if size is None or size < 0 or size > self._allowed:
            raise ManifestError(
                f"{self.archive}: a header of more than {LONGEST_HEADER:,} bytes; nothing more is unpacked"
            )
        self._allowed -= size
        return self._advance(size)

    def seek(self, place: int, whence: int = io.SEEK_SET, /) -> int:
        """Skip to a later place, or to the end if that comes first."""
        if whence != io.SEEK_SET or place < self._place:
            raise tarfile.ReadError("members overlap")
        while self._place < place and self._advance(min(CHUNK, place - self._place)):
            pass
        return self._place

    def tell(self) -> int:
        """The place in the unpacked content."""
        return self._place

    def _advance(self, size: int) -> bytes:
        content = self._content.read(size)
        self._place += len(content)
        if self._place > self._most:
            raise too_much_content(self.archive)
        return content


def _unpack(
    archive: Path,
    members: tarfile.TarFile,
    stream: _BoundedStream,
    into: Path,
    wanted: Callable[[PurePosixPath], bool],
) -> list[Path]:
    written: dict[Path, None] = {}
    total = count = 0
    while (member := _next(members, stream)) is not None:
        count += 1
        if count > MOST_MEMBERS:
            raise ManifestError(f"{archive}: has more than {MOST_MEMBERS:,} members; split it")
        name = PurePosixPath(member.name)
        if member.isdir() or not wanted(name):
            continue
        target = _place(archive, member, name, into)
        total += member.size
        if member.size > MOST_BYTES or total > MOST_IN_ALL:
            raise ManifestError(
                f"{archive}: {shown(member.name)} is too large ({member.size:,} bytes, {total:,} in all)"
            )
        if target in written:
            raise ManifestError(f"{archive}: holds {shown(member.name)} twice")
        written[target] = None
        if not (target.is_file() and target.stat().st_size == member.size):
            stream.allow(member.size)
            source = members.extractfile(member)
            with replacing(target, durable=False) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source or io.BytesIO(), file, CHUNK)
    return list(written)


def _next(members: tarfile.TarFile, stream: _BoundedStream) -> tarfile.TarInfo | None:
    """The next member, without keeping those before it, and with bounded headers."""
    stream.allow(LONGEST_HEADER)
    member = members.next()
    # tarfile would keep all of them, with their headers.
    members.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
    if sum(len(key) + len(value) for key, value in members.pax_headers.items()) > LONGEST_HEADER:
        raise ManifestError(f"{stream.archive}: global headers of more than {LONGEST_HEADER:,} bytes")
    return member


def _place(archive: Path, member: tarfile.TarInfo, name: PurePosixPath, into: Path) -> Path:
    """Where a member goes, if it may go anywhere."""
    if not member.isreg():
        raise ManifestError(
            f"{archive}: {shown(member.name)} is a link or a device, not a file; nothing more is unpacked"
        )
    if member.issparse():  # a few bytes of it claim gigabytes of zeros
        raise ManifestError(
            f"{archive}: {shown(member.name)} is a sparse file; nothing more is unpacked. Pack it without --sparse"
        )
    target = into / name
    climbs = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    # A link that lies in the folder already would lead out as well.
    if climbs or not name.name or not target.parent.resolve().is_relative_to(into) or target.is_symlink():
        raise ManifestError(
            f"{archive}: {shown(member.name)} would be written outside {into}; nothing more is unpacked"
        )
    return target


def _package_content(archive: Path, file: IO[bytes]) -> IO[bytes]:
    """The part of a Debian package that holds its files; leaves the file at its beginning."""
    if file.read(len(AR)) != AR:
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
