"""Speed of generating synthetic data."""

import statistics
import tempfile
import time
from pathlib import Path

from triptych.data.synthetic import SyntheticConfig, generate

SCENES, REPEATS = 1000, 3


def main() -> None:
    """Print scenes per second: image, audio, five captions, annotations."""
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(REPEATS):
            started = time.perf_counter()
            generate(SyntheticConfig(scenes=SCENES, seed=seed), Path(folder) / str(seed))
            rates.append(SCENES / (time.perf_counter() - started))
    print(f"{statistics.median(rates):.0f} scenes/s   ({min(rates):.0f} to {max(rates):.0f})")
