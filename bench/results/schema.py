"""The structure of a page of results: tables of rows. A row is the mean of a few runs of the same commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

RESULTS_FOLDER = Path("runs/results")  # manifests, runs and measurements; only the pages are in the repository
EVALUATE = ("triptych", "evaluate", "{run}", "--data", "{data}", "--allow-outside", "--json")
CLASSIFY = ("triptych", "classify", "{run}", "--data", "{data}", "--allow-outside", "--json")
Measurements = Mapping[str, Any]  # the JSON output of the evaluation commands by name, with "seconds" and "megabytes"


@dataclass(frozen=True)
class Dataset:
    """A manifest that a command makes from a local copy ($TRIPTYCH_DATA) or from another manifest."""

    name: str
    command: tuple[str, ...]  # {data} is the output file, {NAME} another manifest
    needs: tuple[str, ...] = ()
    file: str = ""  # default NAME.csv; a command that makes a folder: NAME/manifest.csv

    @property
    def path(self) -> Path:
        """The path of the manifest."""
        return RESULTS_FOLDER / "data" / (self.file or f"{self.name}.csv")


@dataclass(frozen=True)
class Row:
    """A row of a table: a recipe with overrides, trained for each seed on each manifest, and evaluated."""

    label: str
    recipe: str
    data: tuple[str, ...]  # names of manifests; several names are folds
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    measures: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"recall": EVALUATE})
    test: str = ""  # the manifest to evaluate on, if not the training manifest
    headline: bool = False  # show it in the overview

    def runs(self) -> list[Run]:
        """Return all runs of this row."""
        return [Run(self, data, seed) for data, seed in product(self.data, self.seeds)]


@dataclass(frozen=True)
class Run:
    """One training and its evaluation."""

    row: Row
    data: str
    seed: int

    @property
    def test_data(self) -> str:
        """The manifest whose test split is evaluated."""
        return self.row.test or self.data

    def train_command(self, folder: str, manifest: str) -> list[str]:
        """Return the training command."""
        overrides = [*self.row.overrides, *([f"training.seed={self.seed}"] if self.seed else [])]
        set_options = [word for change in overrides for word in ("--set", change)]
        return ["triptych", "train", self.row.recipe, "--data", manifest, "--allow-outside", "-o", folder, *set_options]

    def measure_command(self, name: str, folder: str, manifest: str) -> list[str]:
        """Return an evaluation command, which prints JSON."""
        return [word.format(run=folder, data=manifest) for word in self.row.measures[name]]


@dataclass(frozen=True)
class Column:
    """A column of a table: a number that is read from the measurements of a row."""

    title: str
    read: Callable[[Measurements], float]
    digits: int = 1
    headline: bool = False  # show it in the overview


@dataclass(frozen=True)
class Table:
    """Rows with the same columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    about: str = ""  # the text above the table: task, data and model selection


@dataclass(frozen=True)
class Grid:
    """Rows that vary along two axes (label and column), shown as one table per measured number."""

    title: str
    columns: Sequence[Column]
    cells: Mapping[str, Mapping[str, Row]]  # label -> column name -> row
    about: str = ""
    show_retained: bool = True  # show each number relative to the first column

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for line in self.cells.values() for row in line.values()]


@dataclass(frozen=True)
class Page:
    """The page of one recipe."""

    recipe: str
    about: str
    tables: Sequence[Table | Grid]
    observations: str = ""  # the discussion, written by hand


def recall_column(query: str, gallery: str, k: int, measure: str = "recall") -> Column:
    """Return the column of Recall@k in % of one direction of `triptych evaluate --json`."""

    def read(measurements: Measurements) -> float:
        direction = next(d for d in measurements[measure] if (d["query"], d["gallery"]) == (query, gallery))
        return 100 * direction["recall"][str(k)]

    return Column(f"{query} → {gallery} R@{k}", read, headline=k == 10)


def recall_columns(query: str, gallery: str, measure: str = "recall") -> list[Column]:
    """Return the columns R@1, R@5 and R@10 of one direction."""
    return [recall_column(query, gallery, k, measure) for k in (1, 5, 10)]


def accuracy_column(title: str = "zero-shot accuracy", measure: str = "classes") -> Column:
    """Return the column of the zero-shot accuracy in % of `triptych classify --json`."""
    return Column(title, lambda measurements: 100 * measurements[measure][0]["accuracy"], headline=True)


SECONDS_COLUMN = Column("training, s", lambda measurements: measurements["seconds"], 0)
MEMORY_COLUMN = Column("peak memory, MB", lambda measurements: measurements["megabytes"], 0)
COST_COLUMNS = [SECONDS_COLUMN, MEMORY_COLUMN]
