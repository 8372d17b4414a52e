"""A run folder for one training at a time, with room for what that training will write."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from triptych.errors import TrainingError
from triptych.files import TEMP_SUFFIX, is_locked, lock

LOCK_FILE = "training.lock"
PROBE_BYTES = 4096
FALLOCATE_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # a file system that reserves nothing ahead


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder until the block ends. The system lets go of it when the process ends, however it ends."""
    is_new = not folder.exists()
    try:
        with _acquire_lock(folder):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # it goes only if it is empty: nothing came of the run
                folder.rmdir()


def is_running(folder: Path) -> bool:
    """Whether a process is training into a folder just now."""
    return is_locked(folder / LOCK_FILE)


@contextmanager
def _acquire_lock(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_acquired = stack.enter_context(lock(folder / LOCK_FILE))
            if not is_acquired:
                time.sleep(0.1)  # somebody who only asked whether the folder is taken has let go of it by then
                is_acquired = stack.enter_context(lock(folder / LOCK_FILE))
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written to ({error.strerror}); give another folder") from error
        if not is_acquired:
            raise TrainingError(
                f"{folder}: another process is training into this folder; wait until it has ended, or give another"
            )
        yield


def check_disk_space(path: Path, required_bytes: int) -> None:
    """Reserve so many bytes beside a file for a moment, and write: a full disk fails now, not after an hour."""
    folder = path.parent
    free_bytes = shutil.disk_usage(folder).free
    requirement = f"this run needs {required_bytes / 1e6:,.1f} MB for its checkpoints"
    if free_bytes < required_bytes:
        raise TrainingError(
            f"{folder}: {requirement}, and the disk has {free_bytes / 1e6:,.1f} MB free; make room, or give another"
        )
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
        raise TrainingError(
            f"{folder}: {requirement}, and cannot write them ({error.strerror}); give another"
        ) from error


def _reserve(handle: int, num_bytes: int) -> None:
    """Blocks for so many bytes: unlike the number of free bytes, this knows of quotas."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        if error.errno not in FALLOCATE_UNSUPPORTED:
            raise
