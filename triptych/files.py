"""Writing files so that a half-written one never has its final name, and by one at a time."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

TEMP_SUFFIX = ".part"
SOFT_LOCK_SUFFIX = ".soft"
LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # some network file systems
OS_ERROR_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room: your disk quota is used up",
    errno.EFBIG: "raise the system's limit on the size of a file (ulimit -f)",
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EACCES: "check the permissions of the folder and its files",
    errno.EPERM: "check the permissions of the folder and its files",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.EIO: "the disk reports an error: check it",
}
WINDOWS_ERROR_CODES = {
    5: errno.EACCES,
    19: errno.EROFS,
    39: errno.ENOSPC,
    112: errno.ENOSPC,
}  # its own codes of the same errors


@contextmanager
def atomic_write(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise.

    durable waits for the disk, so that even a power cut leaves the old file or the new one; for thousands of files that
    can be made again, that wait is not worth its time. Safe on threads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is cut short, as it must stay below a file system's limit with what is added to it.
    temp_path = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}{TEMP_SUFFIX}")
    try:
        # The system applies the umask here; asking for the umask itself would be a race between threads.
        os.close(os.open(temp_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temp_path
        if durable:
            with temp_path.open("rb") as file:
                os.fsync(file.fileno())
        temp_path.replace(path)
    finally:
        temp_path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that is replaced whole or not at all."""
    with atomic_write(path) as temp_path:
        temp_path.write_text(text, encoding="utf-8")


def find_stale_temp_files(folder: Path, file_names: Iterable[str]) -> set[str]:
    """The names of the temporary files that a killed process has left of these files in a folder."""
    return {path.name for name in file_names for path in folder.glob(f".{name}.*{TEMP_SUFFIX}")}


def remove_stale_temp_files(folder: Path, file_names: Iterable[str]) -> None:
    """Remove what a killed process has left of these files."""
    for name in find_stale_temp_files(folder, file_names):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` until the block ends; gives False, and holds nothing, where another process has it.

    The system releases the lock when the process ends, however it ends: a lock file that is left over locks nothing.
    Where a file system has no locks, the existence of the file is the lock, and its holder's process id is in it.
    """
    file_lock = _acquire_lock(path)
    if file_lock is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # removed while it is held, so that nobody locks a file that goes; Windows refuses that
            Path(file_lock.lock_file).unlink()
        file_lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file `path`; needs no permission to write, and leaves the file alone."""
    from filelock import lock_descriptor

    try:
        with path.open("rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        return error.errno == errno.ENOSYS  # no locks here: the file's existence is the lock


def lock_file_names(name: str) -> set[str]:
    """The names of the files that a lock file of this name may leave."""
    return {name, name + SOFT_LOCK_SUFFIX}


def _acquire_lock(path: Path) -> BaseFileLock | None:
    from filelock import FileLock, SoftFileLock, Timeout

    try:
        file_lock: BaseFileLock = FileLock(path, blocking=False, thread_local=False)
        try:
            file_lock.acquire()
        except OSError as error:
            if error.errno not in LOCKS_UNSUPPORTED:
                raise
            file_lock = SoftFileLock(path.with_name(path.name + SOFT_LOCK_SUFFIX), blocking=False, thread_local=False)
            file_lock.acquire()
    except Timeout:
        return None
    return file_lock


def extract_os_error_code(error: BaseException) -> int | None:
    """The operating system's code of an error, also of one that a library has turned into a text; None if it has none.

    A file that is missing counts as none: it says nothing about the disk.
    """
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        match = re.search(r"\(os error (\d+)\)", str(error))
        code = int(match.group(1)) if match else None
        code = WINDOWS_ERROR_CODES.get(code or 0, code) if os.name == "nt" else code
    return None if code == errno.ENOENT else code


def suggest_remedy(code: int) -> str:
    """What to do about an error of the operating system."""
    return OS_ERROR_REMEDIES.get(code, "see to it that the folder can be read and written")
