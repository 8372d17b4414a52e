"""Terminal output of `triptych compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from triptych.app.terminal import MAX_PROBLEMS, make_table, relative_path, stdout

if TYPE_CHECKING:
    from triptych.evaluation.comparison import Comparison, Flip, Slice
    from triptych.evaluation.significance import Difference

METRICS = ("R@1", "R@10", "mAP@10")


def print_comparisons(comparisons: Sequence[Comparison], show_all: bool = False) -> None:
    """Print the table of differences, then for every direction the queries whose result changed, and the slices."""
    stdout.print(make_comparison_table(comparisons))
    for comparison in comparisons:
        print_comparison(comparison, show_all)


def make_comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of B − A for every direction and metric, in percentage points, with interval and verdict."""
    headings = ("query → gallery", "", "A", "B", "B − A", "95% interval", "verdict")
    table = make_table(headings, {"query → gallery", "", "verdict"}, "in %; B − A with its 95% interval")
    for c in comparisons:
        for name in METRICS:
            diff = c.differences[name]
            direction = f"{c.query} → {c.gallery}" if name == METRICS[0] else ""
            means = f"{100 * diff.mean_a:.1f}", f"{100 * diff.mean_b:.1f}"
            table.add_row(direction, name, *means, *_format_difference(diff))
    return table


def print_comparison(comparison: Comparison, show_all: bool = False) -> None:
    """Print the queries of one direction whose result changed, and the slices.

    Without `show_all`, only the first changed queries and the labels that differ most are printed.
    """
    c = comparison
    stdout.print(f"{c.query} → {c.gallery}", style="bold", end="  ")
    stdout.print(
        f"{c.num_queries} queries: {len(c.losses)} have a positive in the top 10 only with A, {len(c.wins)} only with B"
    )
    for sign, flips in (("−", c.losses), ("+", c.wins)):
        for flip in flips if show_all else flips[: MAX_PROBLEMS // 2]:
            stdout.print(f"  {sign} rank {flip.rank_a:g} → {flip.rank_b:g}  {_format_query(flip)}")
    labels = [s for s in c.slices if s.attribute == "label"]
    labels.sort(key=lambda s: (not s.difference.is_significant, -abs(s.difference.value)))
    for s in [s for s in c.slices if s.attribute != "label"] + (labels if show_all else labels[:MAX_PROBLEMS]):
        stdout.print(f"  {_format_slice(s)}")
    if len(labels) > MAX_PROBLEMS and not show_all:
        stdout.print(f"  … and {len(labels) - MAX_PROBLEMS} more labels (show them with --all)")


def _format_slice(result: Slice) -> str:
    name = result.value if result.attribute == "label" else f"{result.value} {result.attribute}"
    value, interval, verdict = _format_difference(result.difference)
    return f"{name:<20} {result.num_queries:>6} queries   R@10 {value:>6} {interval:>15}  {verdict}"


def _format_query(flip: Flip) -> str:
    source = flip.item.source
    return f'"{source.content}"' if source.modality == "text" else relative_path(source.path)


def _format_difference(difference: Difference) -> tuple[str, str, str]:
    low, high = 100 * difference.interval.low, 100 * difference.interval.high
    return f"{100 * difference.value:+.1f}", f"{low:+.1f} … {high:+.1f}", difference.verdict()
