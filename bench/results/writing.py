"""Pages from what is stored: tables in Markdown, with the commands that made each row."""

from __future__ import annotations

import shlex
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench.results.data import DATA
from bench.results.plan import Column, Found, Grid, Page, Row, Table
from bench.results.runner import filled, folder_of, stored
from triptych.files import write_text

DOCS = Path("docs/results")
WIDTH = 120


def write_page(page: Page) -> Path:
    """docs/results/RECIPE.md: what is stored of its rows; rows that have not run yet say so."""
    parts = [f"# {page.recipe}", _filled(page.about)]
    for table in page.tables:
        if not any(_found(row) for row in table.rows):
            parts += [f"## {table.title}", "Not run yet: the command below does."]
            continue
        shown = _grid(table) if isinstance(table, Grid) else _table(table)
        parts += [f"## {table.title}", _filled(table.about), shown, _commands(table)]
    if page.seen:
        parts += ["## What was seen", _filled(page.seen)]
    parts += ["## The data", _data_commands(page), _closing(page)]
    path = DOCS / f"{page.recipe}.md"
    write_text(path, "\n\n".join(part for part in parts if part) + "\n")
    return path


def write_overview(pages: Sequence[Page]) -> Path:
    """docs/results/README.md: the headline rows of every page; those of pages that ran elsewhere stay as they are."""
    path = DOCS / "README.md"
    before = path.read_text().splitlines() if path.exists() else []
    lines = ["| recipe | measured on | row | |", "|---|---|---|---|"]
    for page in pages:
        if not any(_found(row) for table in page.tables for row in table.rows if row.headline):
            lines += [line for line in before if line.startswith(f"| [{page.recipe}](")]
        for table in page.tables:
            columns = [column for column in table.columns if column.headline]
            for row in table.rows:
                if row.headline and _found(row):
                    told = "; ".join(f"{column.title} {_cell(row, column)}" for column in columns)
                    lines.append(f"| [{page.recipe}]({page.recipe}.md) | {table.title} | {row.label} | {told} |")
    about = (
        "Each recipe was run on real data; its page has every table, what was seen, and the commands that make any row "
        "again. `python -m bench results RECIPE` runs what is missing of a page (interrupted, it goes on where it was) "
        "and writes it; without a name, all pages. `TRIPTYCH_DATA` names the folder with the data sets, "
        "`TRIPTYCH_YAMNET` YAMNet's weights. Figures are means over seeds and folds, ± the standard deviation; recall "
        "and accuracy in %."
    )
    write_text(path, "\n\n".join(["# Results", _filled(about), "\n".join(lines)]) + "\n")
    return path


def _table(table: Table) -> str:
    head = ["row", *(column.title for column in table.columns), "runs"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.rows:
        cells = [row.label, *(_cell(row, column) for column in table.columns), _runs(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _grid(grid: Grid) -> str:
    """One table for each figure: a line for each label, a column for each row of it."""
    tables = []
    for column in grid.columns:
        names = list(dict.fromkeys(name for line in grid.cells.values() for name in line))
        lines = [f"| {column.title} | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
        for label, line in grid.cells.items():
            first = next(iter(line.values()))
            cells = [_cell(row, column) + (_kept(row, first, column) if grid.kept else "") for row in line.values()]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _kept(row: Row, first: Row, column: Column) -> str:
    """Which share of the first row's figure is left of it, where both have run."""
    before, now = _found(first), _found(row)
    if row is first or before is None or now is None:
        return ""
    share = statistics.mean(map(column.read, now)) / statistics.mean(map(column.read, before))
    return f" ({100 * share:.0f}%)"


def _cell(row: Row, column: Column) -> str:
    """Mean over seeds and folds, ± their standard deviation where there are several."""
    found = _found(row)
    if found is None:
        return "not run"
    values = [column.read(one) for one in found]
    mean = f"{statistics.mean(values):.{column.digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{column.digits}f}" if len(values) > 1 else mean


def _found(row: Row) -> list[Found] | None:
    found = [stored(run) for run in row.runs()]
    return [one for one in found if one is not None] if None not in found else None


def _runs(row: Row) -> str:
    folds = f"{len(row.data)} folds" if len(row.data) > 1 else ""
    seeds = f"{len(row.seeds)} seeds" if len(row.seeds) > 1 else ""
    return " × ".join(word for word in (folds, seeds) if word) or "1"


def _commands(table: Table | Grid) -> str:
    """The commands of each row's first run."""
    lines = []
    for row in table.rows:
        run = row.runs()[0]
        folder, data = str(folder_of(run)), str(DATA[run.data].path)
        others = [f"{DATA[name].name}" for name in row.data[1:]]
        also = [f"also on {', '.join(others)}"] if others else []
        also += [f"also with training.seed={', '.join(map(str, row.seeds[1:]))}"] if len(row.seeds) > 1 else []
        lines.append(f"# {row.label}" + (f" ({'; '.join(also)})" if also else ""))
        lines.append(_shell(run.train(folder, data)))
        test = str(DATA[run.measured_on].path)
        lines += [_shell(run.measure(name, folder, test)) for name in row.measures]
    return "<details><summary>Commands</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>"


def _data_commands(page: Page) -> str:
    wanted: dict[str, None] = {}
    for table in page.tables:
        for row in table.rows:
            for name in row.data:
                wanted |= dict.fromkeys([*DATA[name].needs, name])
    return "```sh\n" + "\n".join(_shell(filled(name)) for name in wanted) + "\n```"


def _shell(command: Sequence[str]) -> str:
    """A command as one would type it; $NAME stays as it is."""
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in command)


def _closing(page: Page) -> str:
    return _filled(
        f"`python -m bench results {page.recipe}` makes this page; the rows of each table, and the text, stand in "
        "`bench/results/`. Training time is that of all epochs, from features at hand, on one thread of a processor "
        "that was busy with other things too; memory is the peak of the whole process."
    )


def _filled(text: str) -> str:
    """Paragraphs broken to lines; lists and tables stay as they are."""
    kept = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if any(line.startswith(("-", "|", "#", "```")) for line in lines):
            kept.append(paragraph)
        else:
            kept.append(textwrap.fill(" ".join(line.strip() for line in lines), WIDTH, break_on_hyphens=False))
    return "\n\n".join(kept)
