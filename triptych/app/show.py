"""How results look on a terminal: shared by the commands and the demo."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from triptych.contracts import Hit
    from triptych.data.manifest import Manifest
    from triptych.evaluation.retrieval import Retrieval

FIRST = 5  # how many problems of a kind are shown
MANY = 12  # how many names of a kind are shown
out = Console(highlight=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


def recalls(directions: Iterable[Retrieval]) -> Table:
    """Recall in every direction with chance beside it."""
    table = Table(title="recall in %; chance is that of R@10", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("query → found", "items", "R@1", "R@5", "R@10", "chance", "R@10 ÷ chance", "median rank"):
        table.add_column(heading, justify="left" if "→" in heading else "right", no_wrap=True)
    for d in directions:
        cells = [f"{100 * share:.1f}" for share in (d.recall[1], d.recall[5], d.recall[10], d.chance[10])]
        ratio = f"{d.recall[10] / d.chance[10]:.1f}×"
        table.add_row(f"{d.query} → {d.gallery}", f"{d.items}", *cells, ratio, f"{d.median_rank:g}")
    return table


def hits(found: Sequence[Hit], right: Container[str] = ()) -> Table:
    """Search results, best first within each modality; those that are known to be right are marked."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    for style in ("bold", "dim", "cyan", ""):
        table.add_column(style=style, overflow="fold", no_wrap=bool(style))
    for hit in found:
        moment = "" if hit.start is None else f" [{hit.start:g}–{hit.end:g} s]"
        name = "" if hit.modality == "text" else Path(hit.item).name + moment
        # Of several captions the longest: it says the most.
        words = hit.item if hit.modality == "text" else max(hit.captions, key=len, default="")
        mark = "✓" if hit.item in right else " "
        table.add_row(f"{mark} {hit.score:.3f}", hit.modality, Text(name), Text(words))
    return table


def failed(messages: Collection[str]) -> None:
    """What could not be read: how many, the first few, and why."""
    if messages:
        notes.print(f"[yellow]{len(messages)} could not be read and were left out:[/]")
        for message in list(messages)[:FIRST]:
            notes.print(f"  {message}", markup=False)
        if len(messages) > FIRST:
            notes.print(f"  … and {len(messages) - FIRST} more")


def left_out(manifest: Manifest) -> None:
    """One line on the rows of a manifest that cannot be used."""
    if manifest.counts.unusable:
        notes.print(
            f"{manifest.counts.unusable} rows cannot be used and were left out; "
            f"`triptych check {manifest.path}` says why",
            style="yellow",
            markup=False,
        )


def diagnosis(summary: Mapping[str, Any]) -> None:
    """What a manifest holds and everything that is wrong with it."""
    counts = summary["counts"]
    out.print(f"{summary['path']}: {counts['rows']} rows, {counts['captions']} captions", markup=False)
    for title in ("modalities", "pairs", "splits", "labels"):
        found = [f"{name} {number}" for name, number in counts[title].items() if number]
        shown = found if len(found) <= MANY else [*found[:MANY], f"… {len(found) - MANY} more"]
        out.print(f"  {title:<11}{', '.join(shown) or 'none'}", markup=False)
    for group in summary["problems"]:
        colour = "red" if group["severity"] == "error" else "yellow"
        out.print(f"[bold {colour}]{group['severity']}[/] {group['kind']}: {group['total']}")
        for line in group["first"]:
            out.print(f"  {line}", markup=False)
        if group["more"]:
            out.print(f"  … and {group['more']} more")
    if not summary["problems"]:
        out.print("[green]nothing is wrong with it[/]")
