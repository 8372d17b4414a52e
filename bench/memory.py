"""Run triptych or the peer on one case and print the peak memory. bench.measure runs this module in a new process."""

import sys

from bench.cases import CASES
from bench.measure import peak_over_baseline

if __name__ == "__main__":
    ours, theirs = CASES[sys.argv[1]].make()
    work = ours if sys.argv[2] == "ours" else theirs
    if work is None:
        sys.exit(f"{sys.argv[1]} has no peer")
    print(peak_over_baseline(work))
