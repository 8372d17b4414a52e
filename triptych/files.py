"""Atomic file writes, lock files, and advice for errors of the operating system."""

from __future__ import annotations

import errno
import glob
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
LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # raised by file systems without locks
OS_ERROR_REMEDIES = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space: your quota is exceeded",
    errno.EFBIG: "raise the limit on file size (ulimit -f)",
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EACCES: "check the permissions of the folder and its files",
    errno.EPERM: "check the permissions of the folder and its files",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files",
    errno.EIO: "the disk reports an error: check the disk",
}
WINDOWS_ERROR_CODES = {5: errno.EACCES, 19: errno.EROFS, 39: errno.ENOSPC, 112: errno.ENOSPC}


@contextmanager
def atomic_write(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path. If the block succeeds, the temporary file replaces `path`; otherwise it is removed.

    With durable = True, fsync is called, so that after a power failure `path` is either the old or the new file. Use
    durable = False for many files that can be recomputed, because fsync is slow. Thread-safe. Only a regular file is
    replaced, and no device.
    """
    if path.exists() and not path.is_file():
        is_folder = path.is_dir()
        code, reason = (errno.EISDIR, "Is a directory") if is_folder else (errno.EINVAL, "Is not a regular file")
        raise OSError(code, reason, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file name is truncated, because the temporary name is longer and must not exceed the file system's limit.
    temp_path = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}{TEMP_SUFFIX}")
    try:
        # os.open applies the umask. Reading the umask would change it for a moment, which is a race between threads.
        os.close(os.open(temp_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temp_path
        if durable:
            with temp_path.open("rb") as file:
                os.fsync(file.fileno())
        temp_path.replace(path)
    finally:
        temp_path.unlink(missing_ok=True)


@contextmanager
def remove_if_unused(folder: Path) -> Iterator[None]:
    """After the block, remove a folder that did not exist before the block and is empty."""
    is_new = not folder.exists()
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # `rmdir` removes only an empty folder
                folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temp_path:
        temp_path.write_text(text, encoding="utf-8")


def find_stale_temp_files(folder: Path, file_names: Iterable[str]) -> set[str]:
    """Return the names of the temporary files that killed writers of `file_names` left in a folder."""
    return {path.name for name in file_names for path in folder.glob(f".{glob.escape(name)}.*{TEMP_SUFFIX}")}


def remove_stale_temp_files(folder: Path, file_names: Iterable[str]) -> None:
    """Remove the temporary files that killed writers of `file_names` left in a folder."""
    for name in find_stale_temp_files(folder, file_names):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Hold the lock `path` during the block and yield True; yield False at once if another process holds the lock.

    The operating system releases the lock when the process ends, so a leftover lock file has no effect. On a file
    system without locks, a process owns the lock while the lock file exists. The file then contains the owner's process
    id.
    """
    file_lock = _acquire_lock(path)
    if file_lock is None:
        yield False
        return
    try:
        yield True
    finally:
        # The file is removed before the lock is released, so that no process locks a removed file. On Windows, a locked
        # file cannot be removed.
        with suppress(OSError):
            Path(file_lock.lock_file).unlink()
        file_lock.release()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock `path`; do not change the lock file."""
    from filelock import lock_descriptor

    try:
        with path.open("rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        return error.errno == errno.ENOSYS  # without locks, the lock is held while its file exists


def lock_file_names(name: str) -> set[str]:
    """Return the names of the files that `lock` may create for a lock file called `name`."""
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
    """Return the errno of an OSError or of a Rust library's error message; None if there is no errno.

    For ENOENT, return None too, because a missing file is not a fault of the disk.
    """
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        match = re.search(r"\(os error (\d+)\)", str(error))
        code = int(match.group(1)) if match else None
        code = WINDOWS_ERROR_CODES.get(code or 0, code) if os.name == "nt" else code
    return None if code == errno.ENOENT else code


def suggest_remedy(code: int) -> str:
    """Return advice on how to fix the error of an errno."""
    return OS_ERROR_REMEDIES.get(code, "make sure that the folder can be read and written")
