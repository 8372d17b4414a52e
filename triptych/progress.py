"""Progress reports on stderr: a live progress bar if stderr is a terminal, otherwise one final line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

MIN_BAR_CONSOLE_WIDTH = 100  # in characters; narrower terminals show only the numbers


def notify(message: str, show_progress: bool = True) -> None:
    """Print a line to stderr."""
    if show_progress:
        Console(stderr=True).print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)


class ProgressBar:
    """The progress of a task with a known number of steps."""

    def __init__(self, display: Progress, task_id: int, total: int) -> None:
        self._display, self._task_id, self.total, self.completed, self.note = display, task_id, total, 0, ""

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Add completed steps; the bar shows `note` at its right end."""
        self.completed += steps
        self.note = self.note if note is None else note
        self._display.update(self._task_id, completed=self.completed, note=self.note)  # pyright: ignore[reportArgumentType]


@contextmanager
def track_progress(title: str, total: int, show_progress: bool = True) -> Iterator[ProgressBar]:
    """Show a progress bar for `total` steps on stderr, so that stdout can be piped."""
    console = Console(stderr=True)
    bar_columns = [BarColumn(bar_width=24)] if console.width >= MIN_BAR_CONSOLE_WIDTH else []
    display = Progress(
        TextColumn("{task.description}"),
        *bar_columns,
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
