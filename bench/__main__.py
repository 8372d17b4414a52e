"""Runs every bench, or those named: python -m bench [NAME …]"""

import sys
from collections.abc import Callable

from bench import mechanisms, startup, world

BENCHES: dict[str, Callable[[], None]] = {"startup": startup.main, "world": world.main, "mechanisms": mechanisms.main}


def main() -> None:
    """Run the benches named on the command line, or all; `mechanisms.infonce` is one case of one bench."""
    for name in sys.argv[1:] or list(BENCHES):
        bench, _, case = name.partition(".")
        if bench not in BENCHES:
            sys.exit(f"bench {bench!r} is unknown; known: {', '.join(BENCHES)}")
        print(f"== {name}", flush=True)
        if case:
            mechanisms.main([case])
        else:
            BENCHES[bench]()


main()
