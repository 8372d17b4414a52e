"""Helpers that run the command line as a process."""

import contextlib
import os
import signal
import subprocess
import sys
import time


def triptych(*arguments, cwd=None, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "triptych", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
    )


def accept_interrupts():
    """Restore Ctrl-C: a process that a shell starts in the background ignores it, and its children inherit this."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(arguments, ready, tmp_path):
    """Start a command, press Ctrl-C once `ready()` holds, and return its exit code and error output."""
    command = [sys.executable, "-m", "triptych", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        preexec_fn=accept_interrupts,
    ) as process:
        deadline = time.monotonic() + 600
        while not ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(10):
            # Python ignores an interrupt inside some callbacks: send it again.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
                break
        process.kill()
        errors = process.communicate()[1]
        return process.returncode, errors
