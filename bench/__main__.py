"""Run all benchmarks or the named benchmarks: python -m bench [NAME …].

python -m bench results [RECIPE …] trains and evaluates recipes; python -m bench mutants [MODULE …] runs mutation tests.
"""

import sys
from importlib import import_module

from bench.real_data import install_weights

# The modules of this folder that have a main().
BENCHES = [
    "startup",
    "synthetic",
    "mechanisms",
    "scaling",
    "media",
    "encoders",
    "runtime",
    "cache",
    "probe",
    "translation",
    "retrieval",
    "large_batch",
    "contention",
    "search",
    "audit",
    "server",
    "real_collection",
    "few_pairs",
    "starter",
    "bridge",
]


def main() -> None:
    """Run the named benchmarks, or all benchmarks. A name such as `mechanisms.infonce` runs one case."""
    install_weights()
    if sys.argv[1:2] == ["results"]:  # runs only if named: it takes hours and writes pages
        import_module("bench.results.__main__").main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["mutants"]:  # runs only if named: it takes an hour and has options
        sys.exit(import_module("bench.mutants").main(sys.argv[2:]))
    for name in sys.argv[1:] or BENCHES:
        bench, _, case = name.partition(".")
        if bench not in BENCHES:
            sys.exit(f"bench {bench!r} is unknown; known: {', '.join(BENCHES)}, results, mutants")
        print(f"== {name}", flush=True)
        module = import_module(f"bench.{bench}")
        module.main([case]) if case else module.main()


main()
