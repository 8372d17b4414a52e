"""Start-up time of `triptych --help` and `import triptych`, and the processor time until a missing file is reported."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import triptych": ["-c", "import triptych"],
    "triptych --help": ["-m", "triptych", "--help"],
    "triptych validate --help": ["-m", "triptych", "validate", "--help"],
    "import torch": ["-c", "import torch"],
}
MISSING = (
    "search x --collection none",
    "serve none",
    "index none",
    "index . --space none",
    "evaluate none --data none.csv",
    "compare none none --data none.csv",
    "classify none --data none.csv",
    "localise none --data none",
    "report none",
    "export none --onnx",
    "audit none.csv",
    "train trimodal --data none.csv",
    "train none",
    "validate none.csv",
    "study objectives --data none.csv",
    "runs none",
    "spaces use none",
)
REPEATS = 7
ERROR_REPEATS = 3


def main() -> None:
    """Time the commands alternately, so that other load affects all commands equally."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, arguments in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - started)
    for name, durations in times.items():
        print(f"{name:<24}{statistics.median(durations):6.2f} s   ({min(durations):.2f} to {max(durations):.2f})")
    print("\nprocessor time until a missing file is reported")
    with tempfile.TemporaryDirectory() as folder:
        for command in MISSING:
            seconds = sorted(measure_error(command.split(), folder) for _ in range(ERROR_REPEATS))
            print(f"{command:<36}{statistics.median(seconds):6.2f} s   ({seconds[0]:.2f} to {seconds[-1]:.2f})")


def measure_error(arguments: Sequence[str], folder: str) -> float:
    """Return the processor time in seconds of a command that must end with exit code 2."""
    before = os.times()
    result = subprocess.run(
        [sys.executable, "-m", "triptych", *arguments], cwd=folder, capture_output=True, check=False
    )
    after = os.times()
    assert result.returncode == 2, result.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system
