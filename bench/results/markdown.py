"""Write pages of results from stored measurements: Markdown tables, and the commands of each row."""

from __future__ import annotations

import shlex
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench.results.data import DATA
from bench.results.runner import dataset_command, load_measurements, run_folder
from bench.results.schema import Column, Grid, Measurements, Page, Row, Table
from triptych.files import write_text

DOCS = Path("docs/results")
LINE_WIDTH = 120


def write_page(page: Page) -> Path:
    """Write docs/results/RECIPE.md from stored measurements; mark rows without measurements."""
    sections = [f"# {page.recipe}", _wrap_text(page.about)]
    for table in page.tables:
        if not any(_load_row(row) for row in table.rows):
            sections += [f"## {table.title}", "Not run yet: use the command below."]
            continue
        table_text = _format_grid(table) if isinstance(table, Grid) else _format_table(table)
        sections += [f"## {table.title}", _wrap_text(table.about), table_text, _format_commands(table)]
    if page.observations:
        sections += ["## Discussion", _wrap_text(page.observations)]
    sections += ["## Data", _format_data_commands(page), _format_footer(page)]
    path = DOCS / f"{page.recipe}.md"
    write_text(path, "\n\n".join(part for part in sections if part) + "\n")
    return path


def write_overview(pages: Sequence[Page]) -> Path:
    """Write the main rows of all pages to docs/results/README.md; keep old rows of pages without measurements."""
    path = DOCS / "README.md"
    old_lines = path.read_text().splitlines() if path.exists() else []
    lines = ["| recipe | data | row | results |", "|---|---|---|---|"]
    for page in pages:
        if not any(_load_row(row) for table in page.tables for row in table.rows if row.headline):
            lines += [line for line in old_lines if line.startswith(f"| [{page.recipe}](")]
        for table in page.tables:
            columns = [column for column in table.columns if column.headline]
            for row in table.rows:
                if row.headline and _load_row(row):
                    figures = "; ".join(f"{column.title} {_format_cell(row, column)}" for column in columns)
                    lines.append(f"| [{page.recipe}]({page.recipe}.md) | {table.title} | {row.label} | {figures} |")
    about = (
        "Results of the recipes on real and synthetic data. Each page has tables, a discussion, and the commands "
        "that reproduce each row. `python -m bench results RECIPE` runs the missing rows of a page and writes the "
        "page; without RECIPE, it does so for all pages. To resume, run the same command. Set `TRIPTYCH_DATA` to the "
        "folder of the datasets. Numbers are means over seeds and folds, ± the standard deviation. Recall and "
        "accuracy are in %."
    )
    write_text(path, "\n\n".join(["# Results", _wrap_text(about), "\n".join(lines)]) + "\n")
    return path


def _format_table(table: Table) -> str:
    head = ["row", *(column.title for column in table.columns), "runs"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.rows:
        cells = [row.label, *(_format_cell(row, column) for column in table.columns), _format_run_count(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _format_grid(grid: Grid) -> str:
    """Format one table per measured number, with a line per label and a column per variant."""
    tables = []
    for column in grid.columns:
        names = list(dict.fromkeys(name for line in grid.cells.values() for name in line))
        lines = [f"| {column.title} | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
        for label, line in grid.cells.items():
            first = next(iter(line.values()))
            cells = [
                _format_cell(row, column) + (_format_retained(row, first, column) if grid.show_retained else "")
                for row in line.values()
            ]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _format_retained(row: Row, first: Row, column: Column) -> str:
    """Format a number relative to the first row, if both rows have measurements."""
    first_values, row_values = _load_row(first), _load_row(row)
    if row is first or first_values is None or row_values is None:
        return ""
    retained = statistics.mean(map(column.read, row_values)) / statistics.mean(map(column.read, first_values))
    return f" ({100 * retained:.0f}%)"


def _format_cell(row: Row, column: Column) -> str:
    """Format the mean over seeds and folds, ± the standard deviation if there are several."""
    measurements = _load_row(row)
    if measurements is None:
        return "not run"
    values = [column.read(measurement) for measurement in measurements]
    mean = f"{statistics.mean(values):.{column.digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{column.digits}f}" if len(values) > 1 else mean


def _load_row(row: Row) -> list[Measurements] | None:
    measurements = [load_measurements(run) for run in row.runs()]
    return (
        [measurement for measurement in measurements if measurement is not None] if None not in measurements else None
    )


def _format_run_count(row: Row) -> str:
    folds = f"{len(row.data)} folds" if len(row.data) > 1 else ""
    seeds = f"{len(row.seeds)} seeds" if len(row.seeds) > 1 else ""
    return " × ".join(word for word in (folds, seeds) if word) or "1"


def _format_commands(table: Table | Grid) -> str:
    """Format the commands of the first run of each row."""
    lines = []
    for row in table.rows:
        run = row.runs()[0]
        folder, data = str(run_folder(run)), str(DATA[run.data].path)
        others = [f"{DATA[name].name}" for name in row.data[1:]]
        notes = [f"also on {', '.join(others)}"] if others else []
        notes += [f"also with training.seed={', '.join(map(str, row.seeds[1:]))}"] if len(row.seeds) > 1 else []
        lines.append(f"# {row.label}" + (f" ({'; '.join(notes)})" if notes else ""))
        lines.append(_quote_command(run.train_command(folder, data)))
        test = str(DATA[run.test_data].path)
        lines += [_quote_command(run.measure_command(name, folder, test)) for name in row.measures]
    return "<details><summary>Commands</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>"


def _format_data_commands(page: Page) -> str:
    dataset_names: dict[str, None] = {}
    for table in page.tables:
        for row in table.rows:
            for name in row.data:
                dataset_names |= dict.fromkeys([*DATA[name].needs, name])
    return "```sh\n" + "\n".join(_quote_command(dataset_command(name)) for name in dataset_names) + "\n```"


def _quote_command(command: Sequence[str]) -> str:
    """Quote a command for the shell; $NAME is not quoted."""
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in command)


def _format_footer(page: Page) -> str:
    return _wrap_text(
        f"`python -m bench results {page.recipe}` generates this page from `bench/results/`. The training time covers "
        "all epochs from cached features, on one thread of a shared machine. The memory is the peak of the process."
    )


def _wrap_text(text: str) -> str:
    """Wrap paragraphs; leave lists and tables unchanged."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if any(line.startswith(("-", "|", "#", "```")) for line in lines):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(
                textwrap.fill(" ".join(line.strip() for line in lines), LINE_WIDTH, break_on_hyphens=False)
            )
    return "\n\n".join(paragraphs)
