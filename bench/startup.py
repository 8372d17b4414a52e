"""Start-up time of `triptych --help` and `import triptych`, against plain Python and `import torch`."""

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import triptych": ["-c", "import triptych"],
    "triptych --help": ["-m", "triptych", "--help"],
    "triptych validate --help": ["-m", "triptych", "validate", "--help"],
    "import torch": ["-c", "import torch"],
}
REPEATS = 7


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
