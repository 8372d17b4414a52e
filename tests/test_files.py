"""Atomic writes, lock files on different systems, and codes of operating system errors."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.files import (
    atomic_write,
    extract_os_error_code,
    find_stale_temp_files,
    is_locked,
    lock,
    lock_file_names,
    remove_if_unused,
    suggest_remedy,
)

# Holds a lock until its stdin closes. "no fcntl" simulates Python on a system that is not Unix.
HOLDER = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
if sys.argv[2] == "no fcntl":
    sys.modules["fcntl"] = None
from triptych.files import lock
with lock(Path(sys.argv[1])) as is_ours:
    print(is_ours, flush=True)
    sys.stdin.read()
"""


def start_lock_holder(path: Path, system: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path), system]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def holds_lock(process: subprocess.Popen[str]) -> bool:
    assert process.stdout
    return process.stdout.readline().strip() == "True"


@pytest.mark.parametrize("system", ["as it is", "no fcntl"])
def test_a_lock_has_one_holder_and_ends_with_it(tmp_path, system):
    path = tmp_path / "some.lock"
    with start_lock_holder(path, system) as first:
        assert holds_lock(first)
        with start_lock_holder(path, system) as second:
            assert not holds_lock(second)
        first.kill()
    with start_lock_holder(path, system) as third:
        assert holds_lock(third), "a dead process still holds the lock"
    assert not list(tmp_path.iterdir()), "a lock file was left behind"


def test_is_locked_neither_acquires_nor_removes_the_lock(tmp_path):
    path = tmp_path / "some.lock"
    assert not is_locked(path)
    with lock(path) as is_ours:
        assert is_ours
        assert is_locked(path)
    path.touch()  # left by a killed process
    assert not is_locked(path)
    assert path.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_locking_falls_back_to_soft_locks(tmp_path, monkeypatch, code):
    def raise_unsupported(handle: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", raise_unsupported)
    path = tmp_path / "some.lock"
    with lock(path) as is_ours, lock(path) as is_ours_too:
        assert (is_ours, is_ours_too) == (True, False)
        assert {file.name for file in tmp_path.iterdir()} <= lock_file_names("some.lock")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (RuntimeError("lance error: LanceError(IO): No space left on device (os error 28), writer.rs:191:9"), 28),
        (OSError("lance error: Not found: No such file or directory (os error 2)"), None),
        (FileNotFoundError(errno.ENOENT, "gone"), None),
        (RuntimeError("invalid magic number"), None),
    ],
)
def test_extract_os_error_code_reads_errno_and_messages(error, code):
    assert extract_os_error_code(error) == code
    assert suggest_remedy(code or 0)


def test_a_new_folder_that_stays_empty_is_removed(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("new", "old", "used"):
        with remove_if_unused(tmp_path / name):
            (tmp_path / name).mkdir(exist_ok=True)
            if name == "used":
                (tmp_path / name / "file").touch()
    with pytest.raises(FileExistsError), remove_if_unused(tmp_path / "failed"):
        (tmp_path / "old").mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "used"]


def test_a_special_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, reason in (("pipe", "Is not a regular file"), ("folder", "Is a directory")):
        with pytest.raises(OSError, match=reason), atomic_write(tmp_path / name):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_stale_files_of_other_names_are_kept(tmp_path):
    (tmp_path / ".other.0a1b2c3d.part").touch()
    assert find_stale_temp_files(tmp_path, ["*", "[o]ther", "oth?r"]) == set()
    assert find_stale_temp_files(tmp_path, ["other"]) == {".other.0a1b2c3d.part"}
