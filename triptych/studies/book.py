"""A study's book: the numbers of every cell, kept as they are made, and the page that shows them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.csv_files import csv_text
from triptych.errors import UsageError
from triptych.files import replacing, write_text
from triptych.progress import Bar
from triptych.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = dict[str, Any]
Record = dict[str, str | float]  # one line of a table
NOTES = "## What was seen"
FORM = 1  # raised by hand when a cell's recipe gives other numbers than before: fits, measures or rows have changed


class Book:
    """Cells of a study by what they are about and the recipe behind them: what is at hand is not computed again."""

    def __init__(self, path: Path, about: Mapping[str, Any], bar: Bar | None = None) -> None:
        self.path, self.bar = path, bar
        self._about = json.dumps({"form": FORM, **about}, sort_keys=True)
        self._cells: dict[str, Values] = {}
        if path.exists():
            first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            if first != self._about:
                raise UsageError(
                    f"{path}: holds numbers of other data or settings, or of another version of triptych; give another "
                    "folder, or --restart"
                )
            for line in lines:
                try:
                    cell = json.loads(line)
                except ValueError:
                    continue  # the line a kill cut short
                self._cells[cell["key"]] = cell["values"]
            self._write_all()

    def cell(self, work: Callable[[Recipe], Values], recipe: Recipe, **key: Any) -> Values:
        """The numbers of one cell: from the book, or computed by its recipe and written down."""
        made_by = hashlib.sha256(recipe.text().encode()).hexdigest()[:16]
        name = json.dumps(key | {"recipe": made_by}, sort_keys=True)
        if name not in self._cells:
            # Through JSON at once, so that a resumed study sees the same numbers as an unbroken one.
            self._cells[name] = json.loads(json.dumps(work(recipe)))
            if not self.path.exists():  # not before: data that turns out not to do leaves no trace
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_text(self.path, self._about + "\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": name, "values": self._cells[name]}) + "\n")
        if self.bar:
            self.bar.advance(1, ", ".join(f"{value}" for value in key.values()))
        return self._cells[name]

    def _write_all(self) -> None:
        lines = [json.dumps({"key": name, "values": values}) for name, values in self._cells.items()]
        write_text(self.path, "\n".join([self._about, *lines]) + "\n")


@dataclass(frozen=True)
class Finding:
    """What a study found: tables by title, plain sentences that follow from them, and a drawing."""

    tables: dict[str, list[Record]]
    said: Sequence[str]
    draw: Callable[[Figure], None]
    arguments: Sequence[str] = field(default_factory=list)  # short arguments that stand beside the numbers


def markdown(records: Sequence[Record]) -> str:
    """Records as a table, columns in the order of the first."""
    columns = list(records[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(shown(record.get(c, '')) for c in columns)} |" for record in records]
    return "\n".join(lines)


def shown(value: str | float) -> str:
    """A number as a person would write it."""
    if isinstance(value, str | bool | int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def write_page(folder: Path, name: str, question: str, how: str, command: str, found: Finding) -> Path:
    """NAME.md with the tables and the drawing, NAME.png, and NAME.csv; what a person wrote under the notes stays."""
    from matplotlib.figure import Figure

    page = folder / f"{name}.md"
    kept = _notes(page)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    found.draw(figure)
    with replacing(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    parts = [f"# {question}", how, f"```sh\n{command}\n```", f"![{question}]({name}.png)"]
    parts += [f"## {title}\n\n{markdown(records)}" for title, records in found.tables.items()]
    parts += ["## By the numbers\n\n" + "\n".join(f"- {sentence}" for sentence in found.said)]
    if found.arguments:
        parts += ["## Why\n\n" + "\n".join(f"- {sentence}" for sentence in found.arguments)]
    write_text(page, "\n\n".join(parts) + "\n" + kept)
    for number, records in enumerate(found.tables.values()):
        text = csv_text(list(records[0]), records)
        write_text(folder / f"{name}{f'-{number + 1}' if number else ''}.csv", text)
    return page


def _notes(page: Path) -> str:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    place = text.find(f"\n{NOTES}")
    return text[place:] if place >= 0 else ""
