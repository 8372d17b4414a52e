"""Run the missing rows of the named pages, or of all pages, and write the pages: python -m bench results [RECIPE …]"""

import sys
import time
from collections.abc import Sequence

from bench.results.markdown import write_overview, write_page
from bench.results.pages import PAGES
from bench.results.runner import format_elapsed, measure_run


def main(names: Sequence[str]) -> None:
    """Run all rows of the named pages, or of all pages. `--write` only writes pages from stored measurements."""
    only_write = "--write" in names
    selected = [name for name in names if name != "--write"] or list(PAGES)
    for name in selected:
        if name not in PAGES:
            sys.exit(f"unknown page {name!r}; known: {', '.join(PAGES)}")
    for name in selected:
        started = time.monotonic()
        print(f"== {name}", flush=True)
        for table in PAGES[name].tables:
            for row in table.rows if not only_write else ():
                for run in row.runs():
                    measure_run(run)
        print(f"   {write_page(PAGES[name])} in {format_elapsed(started)}", flush=True)
    print(f"   {write_overview(list(PAGES.values()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
