"""One progress bar for all long work: a live bar on a terminal, one closing line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

WIDE = 100


def tell(message: str, show: bool = True) -> None:
    """One line about long work, on the error stream."""
    if show:
        Console(stderr=True).print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)


class Bar:
    """Tells how far a piece of work is."""

    def __init__(self, live: Progress, task: int, total: int) -> None:
        self._live, self._task, self.total, self.done, self.note = live, task, total, 0, ""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """So many steps more are done; the note stands beside the bar."""
        self.done += steps
        self.note = self.note if note is None else note
        self._live.update(self._task, completed=self.done, note=self.note)  # pyright: ignore[reportArgumentType]


@contextmanager
def progress(title: str, total: int, show: bool = True) -> Iterator[Bar]:
    """A bar for `total` steps, on the error stream so that results can be piped."""
    console = Console(stderr=True)
    bar = [BarColumn(bar_width=24)] if console.width >= WIDE else []  # on a narrow terminal the numbers come first
    live = Progress(
        TextColumn("{task.description}"),
        *bar,
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not show or not console.is_terminal,
    )
    started = time.monotonic()
    with live:
        bar = Bar(live, live.add_task(title, total=total, note=""), total)
        yield bar
    if show and not console.is_terminal:
        took = time.monotonic() - started
        print(f"{title}: {bar.done}/{total} in {took:.1f} s {bar.note}".rstrip(), file=sys.stderr)  # noqa: T201
