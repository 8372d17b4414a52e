"""Archives of strangers, unpacked without letting them write anywhere else, or without end."""

from __future__ import annotations

import io
import shutil
import tarfile
import zlib
from collections.abc import Callable
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from triptych.data.problems import shown
from triptych.errors import ManifestError
from triptych.files import replacing

MOST_MEMBERS = 2_000_000  # of one archive
MOST_BYTES = 2_000_000_000  # of one member
MOST_IN_ALL = 500_000_000_000  # of one archive
AR = b"!<arch>\n"


def unpack(archive: Path, into: Path, wanted: Callable[[PurePosixPath], bool]) -> list[Path]:
    """Write the wanted files of a tar archive (or of a .deb package) below a folder, in the archive's order.

    A wanted member that climbs out, is a link or a device, comes twice or is too large stops everything: an archive
    with one of them was not made in good faith. Files that are there already with the same size are kept.
    """
    try:
        with archive.open("rb") as file:
            stream = _package_content(archive, file) if archive.suffix == ".deb" else file
            with tarfile.open(fileobj=stream, mode="r|*") as members:
                return _unpack(archive, members, into.resolve(), wanted)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
        raise ManifestError(f"{archive}: cannot be read as a tar archive: {error}; is it whole?") from error


def _unpack(archive: Path, members: tarfile.TarFile, into: Path, wanted: Callable[[PurePosixPath], bool]) -> list[Path]:
    written: dict[Path, None] = {}
    total = 0
    for count, member in enumerate(members, start=1):
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
            source = members.extractfile(member)
            with replacing(target, durable=False) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source or io.BytesIO(), file)
    return list(written)


def _place(archive: Path, member: tarfile.TarInfo, name: PurePosixPath, into: Path) -> Path:
    """Where a member goes, if it may go anywhere."""
    if not member.isreg():
        raise ManifestError(
            f"{archive}: {shown(member.name)} is a link or a device, not a file; nothing more is unpacked"
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
