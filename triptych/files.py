"""Writing files so that a half-written one never has its final name, and by one at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix: there two that write to one place are not noticed
    fcntl = None

PART = ".part"


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    durable waits for the disk, so that even a power cut leaves the old file or the new one; for thousands of files that
    can be made again, that wait is not worth its time. Safe on threads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is cut short, as it must stay below a file system's limit with what is added to it.
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}{PART}")
    try:
        # The system applies the umask here; asking for the umask itself would be a race between threads.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that is replaced whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remains(folder: Path, files: Iterable[str]) -> set[str]:
    """The names of the temporary files that a killed process has left of these files in a folder."""
    return {path.name for name in files for path in folder.glob(f".{name}.*{PART}")}


def sweep(folder: Path, files: Iterable[str]) -> None:
    """Remove what a killed process has left of these files."""
    for name in remains(folder, files):
        (folder / name).unlink(missing_ok=True)


def lock(handle: int) -> bool:
    """Take the lock of an open file or folder, until it is closed; False where another process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems know no locks: work goes on without
        return True
    return True
