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
from triptych.files import PART, is_locked, lock

LOCK = "training.lock"
BLOCK = 4096
CANNOT_SAY = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # a file system that reserves nothing ahead


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder until the block ends. The system lets go of it when the process ends, however it ends."""
    is_new = not folder.exists()
    try:
        with _locked(folder):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # it goes only if it is empty: nothing came of the run
                folder.rmdir()


def is_claimed(folder: Path) -> bool:
    """Whether a process is training into a folder just now."""
    return is_locked(folder / LOCK)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = stack.enter_context(lock(folder / LOCK))
            if not is_ours:
                time.sleep(0.1)  # somebody who only asked whether the folder is taken has let go of it by then
                is_ours = stack.enter_context(lock(folder / LOCK))
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written to ({error.strerror}); give another folder") from error
        if not is_ours:
            raise TrainingError(
                f"{folder}: another process is training into this folder; wait until it has ended, or give another"
            )
        yield


def check_room(path: Path, needed: int) -> None:
    """Reserve so many bytes beside a file for a moment, and write: a full disk fails now, not after an hour."""
    folder = path.parent
    free = shutil.disk_usage(folder).free
    what = f"this run needs {needed / 1e6:,.1f} MB for its checkpoints"
    if free < needed:
        raise TrainingError(f"{folder}: {what}, and the disk has {free / 1e6:,.1f} MB free; make room, or give another")
    trial = path.with_name(f".{path.name}.trial{PART}")
    try:
        handle = os.open(trial, os.O_CREAT | os.O_WRONLY, 0o666)
        try:
            os.pwrite(handle, bytes(BLOCK), 0)
            _reserve(handle, needed)
            os.fsync(handle)
        finally:
            os.close(handle)
            trial.unlink()
    except OSError as error:
        raise TrainingError(f"{folder}: {what}, and cannot write them ({error.strerror}); give another") from error


def _reserve(handle: int, size: int) -> None:
    """Blocks for so many bytes: unlike the number of free bytes, this knows of quotas."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in CANNOT_SAY:
            raise
