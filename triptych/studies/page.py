"""A study, its result, and the page that presents it: Markdown, a figure, and a CSV file per table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from triptych.csv_files import format_csv
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.files import atomic_write, write_text
from triptych.interfaces import Modality, Source
from triptych.studies.experiment import Experiment
from triptych.studies.result_cache import ResultCache

Record = dict[str, str | float]  # one row of a table
NOTES_HEADING = "## Discussion"  # the text from this heading on is written by hand; a new run of the study keeps it


@dataclass(frozen=True)
class StudyResult:
    """The result of a study: tables by title, conclusions from their numbers, and a figure."""

    tables: dict[str, list[Record]]
    conclusions: Sequence[str]
    draw: Callable[[Figure], None]
    explanations: Sequence[str] = field(default_factory=list)  # short arguments for the results


@dataclass(frozen=True)
class Study:
    """A controlled experiment: a question, its set-up, and the function that runs it."""

    question: str
    setup: str
    count_runs: Callable[[], int]  # returns the maximum number of fits
    run: Callable[[Experiment, ResultCache], StudyResult]
    list_sources: Callable[[Row, Modality], list[Source]] = sources_of  # the sources of a row that are encoded


def write_page(folder: Path, name: str, study: Study, command: str, result: StudyResult) -> Path:
    """Write NAME.md with tables and figure, NAME.png and NAME.csv; keep the notes that a person added to the page."""
    page = folder / f"{name}.md"
    notes = _read_notes(page)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    result.draw(figure)
    with atomic_write(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    sections = [f"# {study.question}", study.setup, f"```sh\n{command}\n```", f"![{study.question}]({name}.png)"]
    sections += [f"## {title}\n\n{format_markdown_table(records)}" for title, records in result.tables.items()]
    sections += ["## Conclusions\n\n" + "\n".join(f"- {sentence}" for sentence in result.conclusions)]
    if result.explanations:
        sections += ["## Explanation\n\n" + "\n".join(f"- {sentence}" for sentence in result.explanations)]
    write_text(page, "\n\n".join(sections) + "\n" + notes)
    for index, records in enumerate(result.tables.values()):
        text = format_csv(list(records[0]), records)
        write_text(folder / f"{name}{f'-{index + 1}' if index else ''}.csv", text)
    return page


def format_markdown_table(records: Sequence[Record]) -> str:
    """Format records as a Markdown table with the columns of the first record."""
    columns = list(records[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(format_value(record.get(c, '')) for c in columns)} |" for record in records]
    return "\n".join(lines)


def format_value(value: str | float) -> str:
    """Format a number with three significant digits, or one decimal from 10 on."""
    if isinstance(value, str | bool | int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _read_notes(page: Path) -> str:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    start = text.find(f"\n{NOTES_HEADING}")
    return text[start:] if start >= 0 else ""
