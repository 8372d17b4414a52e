"""One progress bar for all long work: a live bar on a terminal, one closing line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

MIN_BAR_CONSOLE_WIDTH = 100


def notify(message: str, show_progress: bool = True) -> None:
    """One line about long work, on the error stream."""
    if show_progress:
        Console(stderr=True).print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)


class ProgressBar:
    """Tells how far a piece of work is."""

    def __init__(self, display: Progress, task_id: int, total: int) -> None:
        self._display, self._task_id, self.total, self.completed, self.note = display, task_id, total, 0, ""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """So many steps more are done; the note stands beside the bar."""
        self.completed += steps
        self.note = self.note if note is None else note
        self._display.update(self._task_id, completed=self.completed, note=self.note)  # pyright: ignore[reportArgumentType]


@contextmanager
def track_progress(title: str, total: int, show_progress: bool = True) -> Iterator[ProgressBar]:
    """A bar for `total` steps, on the error stream so that results can be piped."""
    console = Console(stderr=True)
    progress = (
        [BarColumn(bar_width=24)] if console.width >= MIN_BAR_CONSOLE_WIDTH else []
    )  # on a narrow terminal the numbers come first
    display = Progress(
        TextColumn("{task.description}"),
        *progress,
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not show_progress or not console.is_terminal,
    )
    start_time = time.monotonic()
    with display:
        progress = ProgressBar(display, display.add_task(title, total=total, note=""), total)
        yield progress
    if show_progress and not console.is_terminal:
        elapsed = time.monotonic() - start_time
        print(f"{title}: {progress.completed}/{total} in {elapsed:.1f} s {progress.note}".rstrip(), file=sys.stderr)  # noqa: T201
