"""Unpack untrusted tar archives and Debian packages, with limits on paths, sizes and headers."""

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

MAX_MEMBERS, MAX_TOTAL_BYTES = 2_000_000, 500_000_000_000  # limits for an archive
MAX_MEMBER_BYTES = 2_000_000_000
# Audio and images are already compressed and shrink little; captions and silence shrink to a few percent.
MAX_EXPANSION_RATIO = 100  # unpacked size / size of the archive
EXPANSION_ALLOWANCE = 10_000_000  # bytes that may be unpacked in addition, for small archives
MAX_HEADER_BYTES = 256 * 1024  # for all headers of one member: long names, pax records, sparse maps
CHUNK_BYTES = 1 << 16
AR_MAGIC = b"!<arch>\n"
ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError)


def max_unpacked_bytes(archive: Path) -> int:
    """Return the maximum number of bytes that may be unpacked from an archive, given its size."""
    return MAX_EXPANSION_RATIO * archive.stat().st_size + EXPANSION_ALLOWANCE


def expansion_error(archive: Path) -> ManifestError:
    """Build the error for an archive that exceeds `max_unpacked_bytes`."""
    return ManifestError(
        f"{archive}: unpacks to more than {max_unpacked_bytes(archive):,} bytes, {MAX_EXPANSION_RATIO} times its size; "
        "unpacking stopped. If you trust the archive, unpack it yourself and give the folder"
    )


def unpack(archive: Path, folder: Path, should_unpack: Callable[[PurePosixPath], bool]) -> list[Path]:
    """Unpack the members of a tar archive or .deb package for which `should_unpack(name)` is true, in archive order.

    Raise ManifestError if a member has a path outside the folder, is a link, a device or a sparse file, occurs twice or
    is too large, if the archive unpacks to far more than its size, or if a header exceeds MAX_HEADER_BYTES. Existing
    files of the same size are reused.
    """
    try:
        with archive.open("rb") as file:
            payload = _seek_deb_payload(archive, file) if archive.suffix == ".deb" else file
            stream = _BoundedStream(archive, _decompress(payload), max_unpacked_bytes(archive))
            with tarfile.open(fileobj=stream, mode="r:") as members:
                return _unpack_members(archive, members, stream, folder.resolve(), should_unpack)
    except (*ARCHIVE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system; gzip and bz2 set no errno
            raise
        message = f"{archive}: cannot be read as a tar archive: {to_printable(error)}; is it complete?"
        raise ManifestError(message) from error


def _decompress(file: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    """Open a possibly compressed file. The first bytes determine the format."""
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
    """A forward-only stream with a limit on its total size and on the bytes of each read.

    tarfile reads headers of any declared size into memory; calling `allow` before each member bounds this.
    """

    def __init__(self, archive: Path, content: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self.archive, self._content, self._limit = archive, content, limit
        self._position, self._read_allowance = 0, MAX_HEADER_BYTES

    def allow(self, size: int) -> None:
        """Set how many bytes may be read until the next call. Skipped bytes do not count."""
        self._read_allowance = size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, or fewer at the end of the stream."""
        if size is None or size < 0 or size > self._read_allowance:
            raise ManifestError(f"{self.archive}: a header has more than {MAX_HEADER_BYTES:,} bytes; unpacking stopped")
        self._read_allowance -= size
        return self._advance(size)

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        """Skip to a later position, or to the end of the stream."""
        if whence != io.SEEK_SET or position < self._position:
            raise tarfile.ReadError("members overlap")
        while self._position < position and self._advance(min(CHUNK_BYTES, position - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        """Return the position in the unpacked content."""
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
            sizes = f"{member.size:,} bytes, {total:,} in all"
            raise ManifestError(f"{archive}: {to_printable(member.name)} is too large ({sizes})")
        if target in written_paths:
            raise ManifestError(f"{archive}: contains {to_printable(member.name)} twice")
        written_paths[target] = None
        if not (target.is_file() and target.stat().st_size == member.size):
            stream.allow(member.size)
            source = members.extractfile(member)
            with atomic_write(target, durable=False) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source or io.BytesIO(), file, CHUNK_BYTES)
    return list(written_paths)


def _next_member(members: tarfile.TarFile, stream: _BoundedStream) -> tarfile.TarInfo | None:
    """Return the next member, with bounded headers and without keeping earlier members in memory."""
    stream.allow(MAX_HEADER_BYTES)
    member = members.next()
    members.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
    if sum(len(key) + len(value) for key, value in members.pax_headers.items()) > MAX_HEADER_BYTES:
        raise ManifestError(f"{stream.archive}: global headers have more than {MAX_HEADER_BYTES:,} bytes")
    return member


def _target_path(archive: Path, member: tarfile.TarInfo, name: PurePosixPath, folder: Path) -> Path:
    """Return the path to write a member to. Raise ManifestError if the member is not allowed."""
    label = f"{archive}: {to_printable(member.name)}"
    if not member.isreg():
        raise ManifestError(f"{label} is a link or a device, not a file; unpacking stopped")
    if member.issparse():  # a few bytes can declare gigabytes of zeros
        raise ManifestError(f"{label} is a sparse file; unpacking stopped. Pack it without --sparse")
    target = folder / name
    escapes_folder = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    # An existing link in the folder could lead outside as well.
    if escapes_folder or not name.name or not target.parent.resolve().is_relative_to(folder) or target.is_symlink():
        raise ManifestError(f"{label} would be written outside {folder}; unpacking stopped")
    return target


def _seek_deb_payload(archive: Path, file: IO[bytes]) -> IO[bytes]:
    """Seek to data.tar, the part of a Debian package with its files."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ManifestError(f"{archive}: is not a Debian package")
    while header := file.read(60):
        name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), header[48:58].strip()
        if len(header) < 60 or not size.isdigit():
            break
        if name.endswith(".zst"):
            hint = "unpack it with `dpkg-deb -x` and give the folder"
            raise ManifestError(f"{archive}: is compressed with zstd, which is not supported; {hint}")
        if name.startswith("data.tar"):
            return file  # the tar archive ends with its own end marker
        file.seek(int(size) + int(size) % 2, io.SEEK_CUR)
    raise ManifestError(f"{archive}: no data.tar in this package; is it complete?")
