"""Runs every bench, or those named."""

import sys
from collections.abc import Callable

from bench import startup, world

BENCHES: dict[str, Callable[[], None]] = {"startup": startup.main, "world": world.main}


def main() -> None:
    """Run the benches named on the command line, or all."""
    names = sys.argv[1:] or list(BENCHES)
    for name in names:
        if name not in BENCHES:
            sys.exit(f"bench {name!r} is unknown; known: {', '.join(BENCHES)}")
        print(f"== {name}")
        BENCHES[name]()


main()
