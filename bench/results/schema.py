"""What a page of results is made of: tables of rows, each row a few runs of the same two commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

RESULTS_FOLDER = Path(
    "runs/results"
)  # manifests, runs and what was measured of them; the pages alone are part of the project
EVALUATE = ("triptych", "evaluate", "{run}", "--data", "{data}", "--allow-outside", "--json")
CLASSIFY = ("triptych", "classify", "{run}", "--data", "{data}", "--allow-outside", "--json")
Measurements = Mapping[str, Any]  # what the measurements of one run printed, by name, beside "seconds" and "megabytes"


@dataclass(frozen=True)
class Dataset:
    """Data that a command makes: a manifest, from a local copy ($TRIPTYCH_DATA) or from another manifest."""

    name: str
    command: tuple[str, ...]  # {data} is the file it makes, {NAME} that of another manifest
    needs: tuple[str, ...] = ()
    file: str = ""  # NAME.csv unless given; a file in a folder that the command makes is NAME/manifest.csv

    @property
    def path(self) -> Path:
        """Where the manifest lies."""
        return RESULTS_FOLDER / "data" / (self.file or f"{self.name}.csv")


@dataclass(frozen=True)
class Row:
    """One line of a table: a recipe with changes, trained once for each seed on each manifest, measured on each."""

    label: str
    recipe: str
    data: tuple[str, ...]  # manifests; several are folds
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    measures: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"recall": EVALUATE})
    test: str = ""  # the manifest to measure on, where it is not the one that is learned from
    headline: bool = False  # does it stand in the overview?

    def runs(self) -> list[Run]:
        """Every training of this row."""
        return [Run(self, data, seed) for data, seed in product(self.data, self.seeds)]


@dataclass(frozen=True)
class Run:
    """One training and what is measured of it."""

    row: Row
    data: str
    seed: int

    @property
    def test_data(self) -> str:
        """The manifest whose test split counts."""
        return self.row.test or self.data

    def train_command(self, folder: str, manifest: str) -> list[str]:
        """The command that trains."""
        overrides = [*self.row.overrides, *([f"training.seed={self.seed}"] if self.seed else [])]
        set_options = [word for change in overrides for word in ("--set", change)]
        return ["triptych", "train", self.row.recipe, "--data", manifest, "--allow-outside", "-o", folder, *set_options]

    def measure_command(self, name: str, folder: str, manifest: str) -> list[str]:
        """A command that measures, and prints JSON."""
        return [word.format(run=folder, data=manifest) for word in self.row.measures[name]]


@dataclass(frozen=True)
class Column:
    """A figure of a row, read from what its measurements printed."""

    title: str
    read: Callable[[Measurements], float]
    digits: int = 1
    headline: bool = False  # does it stand in the overview?


@dataclass(frozen=True)
class Table:
    """Rows with the same columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    about: str = ""  # what is asked, and how it was chosen: stands above the table


@dataclass(frozen=True)
class Grid:
    """Rows that differ in two ways, as one small table for each figure."""

    title: str
    columns: Sequence[Column]
    cells: Mapping[str, Mapping[str, Row]]  # label -> name of the column -> row
    about: str = ""
    show_retained: bool = True  # show beside each figure which share of the first column's it is

    @property
    def rows(self) -> list[Row]:
        """All of them."""
        return [row for line in self.cells.values() for row in line.values()]


@dataclass(frozen=True)
class Page:
    """Everything about one recipe."""

    recipe: str
    about: str
    tables: Sequence[Table | Grid]
    observations: str = ""  # what was seen, written by whoever looked at the tables


def recall_column(query: str, gallery: str, k: int, measure: str = "recall") -> Column:
    """Recall@k in % of one direction, as `triptych evaluate --json` prints it."""

    def read(measurements: Measurements) -> float:
        direction = next(d for d in measurements[measure] if (d["query"], d["gallery"]) == (query, gallery))
        return 100 * direction["recall"][str(k)]

    return Column(f"{query} → {gallery} R@{k}", read, headline=k == 10)


def recall_columns(query: str, gallery: str, measure: str = "recall") -> list[Column]:
    """R@1, R@5 and R@10 of one direction."""
    return [recall_column(query, gallery, k, measure) for k in (1, 5, 10)]


def accuracy_column(title: str = "named rightly", measure: str = "classes") -> Column:
    """The share of sounds, in %, whose class's prompts are the closest, as `triptych classify --json` prints it."""
    return Column(title, lambda measurements: 100 * measurements[measure][0]["accuracy"], headline=True)


SECONDS_COLUMN = Column("training, s", lambda found: found["seconds"], 0)
MEMORY_COLUMN = Column("peak memory, MB", lambda found: found["megabytes"], 0)
COST_COLUMNS = [SECONDS_COLUMN, MEMORY_COLUMN]
