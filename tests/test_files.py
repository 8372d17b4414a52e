"""Locks that keep processes apart, on systems of every kind."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.files import is_locked, lock, lock_names, os_error_code, remedy

# Holds the lock of a file until its input ends. "no fcntl" is what Python is like where the system is not a Unix.
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


def hold(path: Path, system: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path), system]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def is_held_by(process: subprocess.Popen[str]) -> bool:
    assert process.stdout
    return process.stdout.readline().strip() == "True"


@pytest.mark.parametrize("system", ["as it is", "no fcntl"])
def test_a_lock_has_one_holder_and_ends_with_it(tmp_path, system):
    path = tmp_path / "some.lock"
    with hold(path, system) as first:
        assert is_held_by(first)
        with hold(path, system) as second:
            assert not is_held_by(second)
        first.kill()
    with hold(path, system) as third:
        assert is_held_by(third), "a dead process still holds the lock"
    assert not list(tmp_path.iterdir()), "a lock file was left behind"


def test_asking_for_a_lock_neither_takes_nor_removes_it(tmp_path):
    path = tmp_path / "some.lock"
    assert not is_locked(path)
    with lock(path) as is_ours:
        assert is_ours
        assert is_locked(path)
    path.touch()  # left by a killed process
    assert not is_locked(path)
    assert path.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_still_keeps_processes_apart(tmp_path, monkeypatch, code):
    def refuse(handle: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "some.lock"
    with lock(path) as is_ours, lock(path) as is_ours_too:
        assert (is_ours, is_ours_too) == (True, False)
        assert {file.name for file in tmp_path.iterdir()} <= lock_names("some.lock")


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
def test_the_code_of_the_operating_system_is_found_in_errors_and_their_texts(error, code):
    assert os_error_code(error) == code
    assert remedy(code or 0)
