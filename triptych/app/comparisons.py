"""How two runs side by side look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from triptych.app.show import FIRST, from_here, out

if TYPE_CHECKING:
    from triptych.evaluation.comparison import Comparison, Flip, Slice
    from triptych.evaluation.significance import Difference

SHOWN = ("R@1", "R@10", "mAP@10")


def differences(comparisons: Sequence[Comparison]) -> Table:
    """What B has more than A in every direction, in points, and whether these queries can tell."""
    table = Table(title="in %; B − A with its 95% interval", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("query → found", "", "A", "B", "B − A", "95% interval", "verdict"):
        table.add_column(
            heading, justify="left" if heading in {"query → found", "", "verdict"} else "right", no_wrap=True
        )
    for c in comparisons:
        for name in SHOWN:
            found = c.differences[name]
            way = f"{c.query} → {c.gallery}" if name == SHOWN[0] else ""
            table.add_row(way, name, f"{100 * found.a:.1f}", f"{100 * found.b:.1f}", *_points(found))
    return table


def details(comparison: Comparison, each: bool = False) -> None:
    """The queries of one direction that flipped, and its slices; of labels only the few with the largest difference."""
    c = comparison
    out.print(f"{c.query} → {c.gallery}", style="bold", end="  ")
    out.print(
        f"of {c.queries} queries {len(c.lost)} are found by A alone and {len(c.won)} by B alone, among the first 10"
    )
    for sign, flips in (("−", c.lost), ("+", c.won)):
        for flip in flips if each else flips[: FIRST // 2]:
            out.print(f"  {sign} rank {flip.a:g} → {flip.b:g}  {_name(flip)}")
    labels = [s for s in c.slices if s.by == "label"]
    labels.sort(key=lambda s: (not s.difference.separable, -abs(s.difference.value)))
    for s in [s for s in c.slices if s.by != "label"] + (labels if each else labels[:FIRST]):
        out.print(f"  {_slice(s)}")
    if len(labels) > FIRST and not each:
        out.print(f"  … and {len(labels) - FIRST} more labels: --each shows them")


def _slice(found: Slice) -> str:
    what = found.of if found.by == "label" else f"{found.of} {found.by}"
    value, interval, verdict = _points(found.difference)
    return f"{what:<20} {found.queries:>6} queries   R@10 {value:>6} {interval:>15}  {verdict}"


def _name(flip: Flip) -> str:
    source = flip.item.source
    return f'"{source.content}"' if source.modality == "text" else from_here(Path(source.content))


def _points(found: Difference) -> tuple[str, str, str]:
    ends = found.interval
    return f"{100 * found.value:+.1f}", f"{100 * ends.low:+.1f} … {100 * ends.high:+.1f}", found.verdict()
