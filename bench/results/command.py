"""Run `triptych` commands in forks of this process, so that the package and torch are loaded once."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from triptych.app.cli import main

LOG_TAIL = 2000  # characters of the log that are shown on failure
# Loaded before the fork. Nothing is computed here: threads do not survive a fork.
for module in ("triptych.training.loop", "triptych.evaluation.evaluate", "triptych.evaluation.zero_shot"):
    import_module(module)


@dataclass(frozen=True)
class CommandResult:
    """The output of a command and the resources that the command used."""

    output: str
    usage: resource.struct_rusage

    @property
    def megabytes(self) -> float:
        """The peak resident memory."""
        return self.usage.ru_maxrss / 1024  # Linux reports kilobytes


def run(command: Sequence[str], log: Path) -> CommandResult:
    """Run a command with $NAME expanded from the environment; write its errors to `log`; exit on failure."""
    arguments = [os.path.expandvars(word) for word in command]
    unknown = [word for word in arguments if word.startswith("$")]
    if unknown:
        sys.exit(f"{unknown[0].split('/')[0]} is not set; set it to the folder of the datasets")
    log.parent.mkdir(parents=True, exist_ok=True)
    output = log.with_suffix(".out")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run_in_child(arguments, output, log)
    _, status, usage = os.wait4(pid, 0)  # wait4 is the only call that reports the memory of one child process
    if status:
        sys.exit(f"failed: {' '.join(command)}\n{log.read_text()[-LOG_TAIL:]}")
    return CommandResult(output.read_text(), usage)


def _run_in_child(arguments: Sequence[str], output: Path, log: Path) -> None:
    """Run the command in the child and exit with its status."""
    code = 1
    try:
        for path, stream in ((output, 1), (log, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
        sys.argv = list(arguments)
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
