"""The lock of a run folder, and the check of its disk space."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from triptych.errors import TrainingError
from triptych.files import TEMP_SUFFIX, is_locked, lock, remove_if_unused

LOCK_FILE = "training.lock"
PROBE_BYTES = 4096  # bytes that are written to test whether the folder is writable
FALLOCATE_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # errors of file systems without preallocation


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder until the block ends. If the process dies, the system releases the lock."""
    with remove_if_unused(folder), ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_acquired = stack.enter_context(lock(folder / LOCK_FILE))
            if not is_acquired:
                time.sleep(0.1)  # try again: `is_running` in another process may hold the lock for an instant
                is_acquired = stack.enter_context(lock(folder / LOCK_FILE))
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written ({error.strerror}); give another folder") from error
        if not is_acquired:
            raise TrainingError(
                f"{folder}: another process is training in this folder; wait until it ends, or give another folder"
            )
        yield


def is_running(folder: Path) -> bool:
    """Return whether a process is training in a folder."""
    return is_locked(folder / LOCK_FILE)


def check_disk_space(path: Path, required_bytes: int) -> None:
    """Reserve disk space beside a file and release it, so that a full disk raises an error before training starts."""
    free_bytes = shutil.disk_usage(path.parent).free
    problem = f"{path.parent}: this run needs {required_bytes / 1e6:,.1f} MB for its checkpoints, but"
    if free_bytes < required_bytes:
        free = f"{free_bytes / 1e6:,.1f} MB"
        raise TrainingError(f"{problem} the disk has {free} free; free disk space, or give another folder")
    probe_file = path.with_name(f".{path.name}.trial{TEMP_SUFFIX}")
    try:
        handle = os.open(probe_file, os.O_CREAT | os.O_WRONLY, 0o666)
        try:
            os.pwrite(handle, bytes(PROBE_BYTES), 0)
            _reserve(handle, required_bytes)
            os.fsync(handle)
        finally:
            os.close(handle)
            probe_file.unlink()
    except OSError as error:
        raise TrainingError(f"{problem} they cannot be written ({error.strerror}); give another folder") from error


def _reserve(handle: int, num_bytes: int) -> None:
    """Allocate blocks for an open file. Unlike the number of free bytes, the allocation respects quotas."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        if error.errno not in FALLOCATE_UNSUPPORTED:
            raise
