"""How results look on a terminal: shared by the commands and the demo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from triptych.contracts import Hit, Source
    from triptych.data.manifest import Manifest
    from triptych.evaluation.retrieval import Retrieval

FIRST = 5  # how many of a long list are shown
out = Console(highlight=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


def recalls(directions: Iterable[Retrieval]) -> Table:
    """Recall in every direction with chance beside it."""
    table = Table(title="Recall in % (chance in brackets)", title_justify="left")
    for heading in ("query → found", "queries", "items", "R@1", "R@5", "R@10", "R@10 ÷ chance", "median rank"):
        table.add_column(heading, justify="left" if "→" in heading else "right", no_wrap=True)
    for d in directions:
        cells = [f"{100 * d.recall[k]:.1f} ({100 * d.chance[k]:.1f})" for k in (1, 5, 10)]
        ratio = f"{d.recall[10] / d.chance[10]:.1f}×"
        table.add_row(f"{d.query} → {d.gallery}", f"{d.queries}", f"{d.items}", *cells, ratio, f"{d.median_rank:g}")
    return table


def hits(found: Sequence[Hit], shorten: str = "") -> Table:
    """Search results, best first within each modality."""
    table = Table()
    for heading in ("score", "kind", "found", "caption"):
        table.add_column(heading, justify="right" if heading == "score" else "left", overflow="fold")
    for hit in found:
        moment = "" if hit.start is None else f" [{hit.start:g}–{hit.end:g} s]"
        name = hit.item.removeprefix(shorten) + moment
        table.add_row(f"{hit.score:.3f}", hit.modality, name, hit.captions[0] if hit.captions else "")
    return table


def failed(failures: Mapping[Source, str]) -> None:
    """The files that could not be read: how many, the first few, and why."""
    if failures:
        notes.print(f"[yellow]{len(failures)} could not be read and were left out:[/]")
        for message in list(failures.values())[:FIRST]:
            notes.print(f"  {message}", markup=False)
        if len(failures) > FIRST:
            notes.print(f"  … and {len(failures) - FIRST} more")


def left_out(manifest: Manifest) -> None:
    """One line on the rows of a manifest that cannot be used."""
    errors = {p.row for p in manifest.problems if p.severity == "error"}
    if errors:
        notes.print(
            f"[yellow]{len(errors)} rows of {manifest.path} cannot be used; `triptych check` says why.[/]"
        )
