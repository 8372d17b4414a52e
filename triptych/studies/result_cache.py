"""A study's book: the numbers of every cell, kept as they are made, and the page that shows them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.csv_files import format_csv
from triptych.errors import UsageError
from triptych.files import atomic_write, write_text
from triptych.progress import ProgressBar
from triptych.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = dict[str, Any]
Record = dict[str, str | float]  # one line of a table
NOTES_HEADING = "## What was seen"
FORMAT_VERSION = (
    1  # raised by hand when a cell's recipe gives other numbers than before: fits, measures or rows have changed
)


class ResultCache:
    """Cells of a study by what they are about and the recipe behind them: what is at hand is not computed again."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], progress: ProgressBar | None = None) -> None:
        self.path, self.progress = path, progress
        self._header = json.dumps({"format_version": FORMAT_VERSION, **metadata}, sort_keys=True)
        self._results: dict[str, Values] = {}
        if path.exists():
            header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            if header != self._header:
                raise UsageError(
                    f"{path}: holds numbers of other data or settings, or of another version of triptych; give another "
                    "folder, or --restart"
                )
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the line a kill cut short
                self._results[record["key"]] = record["values"]
            self._rewrite()

    def cached_run(self, compute: Callable[[Recipe], Values], recipe: Recipe, **key: Any) -> Values:
        """The numbers of one cell: from the book, or computed by its recipe and written down."""
        recipe_hash = hashlib.sha256(recipe.to_toml().encode()).hexdigest()[:16]
        cache_key = json.dumps(key | {"recipe": recipe_hash}, sort_keys=True)
        if cache_key not in self._results:
            # Through JSON at once, so that a resumed study sees the same numbers as an unbroken one.
            self._results[cache_key] = json.loads(json.dumps(compute(recipe)))
            if not self.path.exists():  # not before: data that turns out not to do leaves no trace
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_text(self.path, self._header + "\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": cache_key, "values": self._results[cache_key]}) + "\n")
        if self.progress:
            self.progress.advance(1, ", ".join(f"{value}" for value in key.values()))
        return self._results[cache_key]

    def _rewrite(self) -> None:
        lines = [json.dumps({"key": cache_key, "values": values}) for cache_key, values in self._results.items()]
        write_text(self.path, "\n".join([self._header, *lines]) + "\n")


@dataclass(frozen=True)
class StudyResult:
    """What a study found: tables by title, plain sentences that follow from them, and a drawing."""

    tables: dict[str, list[Record]]
    conclusions: Sequence[str]
    draw: Callable[[Figure], None]
    explanations: Sequence[str] = field(default_factory=list)  # short arguments that stand beside the numbers


def format_markdown_table(records: Sequence[Record]) -> str:
    """Records as a table, columns in the order of the first."""
    columns = list(records[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(format_value(record.get(c, '')) for c in columns)} |" for record in records]
    return "\n".join(lines)


def format_value(value: str | float) -> str:
    """A number as a person would write it."""
    if isinstance(value, str | bool | int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def write_page(folder: Path, name: str, question: str, setup: str, command: str, result: StudyResult) -> Path:
    """NAME.md with the tables and the drawing, NAME.png, and NAME.csv; what a person wrote under the notes stays."""
    from matplotlib.figure import Figure

    page = folder / f"{name}.md"
    notes = _read_notes(page)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    result.draw(figure)
    with atomic_write(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    sections = [f"# {question}", setup, f"```sh\n{command}\n```", f"![{question}]({name}.png)"]
    sections += [f"## {title}\n\n{format_markdown_table(records)}" for title, records in result.tables.items()]
    sections += ["## By the numbers\n\n" + "\n".join(f"- {sentence}" for sentence in result.conclusions)]
    if result.explanations:
        sections += ["## Why\n\n" + "\n".join(f"- {sentence}" for sentence in result.explanations)]
    write_text(page, "\n\n".join(sections) + "\n" + notes)
    for index, records in enumerate(result.tables.values()):
        text = format_csv(list(records[0]), records)
        write_text(folder / f"{name}{f'-{index + 1}' if index else ''}.csv", text)
    return page


def _read_notes(page: Path) -> str:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    start = text.find(f"\n{NOTES_HEADING}")
    return text[start:] if start >= 0 else ""
