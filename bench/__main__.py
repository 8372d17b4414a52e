"""Runs every bench, or those named: python -m bench [NAME …].

python -m bench results [RECIPE …] runs recipes; python -m bench mutants [MODULE …] is mutation testing of the tests.
"""

import sys
from importlib import import_module

# Each is a module here with a main(); a new one is a line.
BENCHES = [
    "startup",
    "synthetic",
    "mechanisms",
    "scaling",
    "media",
    "encoders",
    "cache",
    "probe",
    "retrieval",
    "large_batch",
    "contention",
    "search",
    "audit",
    "server",
    "real_collection",
]


def main() -> None:
    """Run the benches named on the command line, or all; `mechanisms.infonce` is one case of one bench."""
    if sys.argv[1:2] == ["results"]:  # takes hours and writes pages, so it is never one of all
        import_module("bench.results.__main__").main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["mutants"]:  # mutation testing: takes an hour, and has options
        sys.exit(import_module("bench.mutants").main(sys.argv[2:]))
    for name in sys.argv[1:] or BENCHES:
        bench, _, case = name.partition(".")
        if bench not in BENCHES:
            sys.exit(f"bench {bench!r} is unknown; known: {', '.join(BENCHES)}, results, mutants")
        print(f"== {name}", flush=True)
        module = import_module(f"bench.{bench}")
        module.main([case]) if case else module.main()


main()
