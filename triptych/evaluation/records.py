"""Results as plain data and as files: JSON of everything, CSV of the table, Parquet of every query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from triptych.contracts import Modality
from triptych.csv_files import csv_text
from triptych.evaluation.evaluate import Evaluation
from triptych.evaluation.retrieval import Retrieval
from triptych.files import replacing, write_text

JSON_FILE, CSV_FILE, PARQUET_FILE = "evaluation.json", "evaluation.csv", "queries.parquet"


def plain(direction: Retrieval) -> dict[str, Any]:
    """One direction as JSON can hold it; shares from 0 to 1."""
    return {
        "query": direction.query,
        "gallery": direction.gallery,
        "mode": direction.mode,
        "queries": direction.queries,
        "items": direction.items,
        "recall": direction.recall,  # also among the metrics; by itself for who asks for nothing else
        "chance": direction.chance,
        "metrics": direction.metrics,
        "guessed": direction.guessed,
        "interval": {name: [found.low, found.high] for name, found in direction.interval.items()},
    }


def table(directions: Sequence[Retrieval]) -> list[dict[str, Any]]:
    """One flat row for each direction: every metric, its interval and what guessing gives."""
    rows = []
    for d in directions:
        row: dict[str, Any] = {key: value for key, value in plain(d).items() if not isinstance(value, dict)}
        for name, value in d.metrics.items():
            row[name] = value
            if name in d.interval:
                row |= {f"{name} low": d.interval[name].low, f"{name} high": d.interval[name].high}
            if name in d.guessed:
                row[f"{name} guessed"] = d.guessed[name]
        rows.append(row)
    return rows


def queries(evaluation: Evaluation) -> pa.Table:
    """Every query of every direction: what it is, what it belongs to, and what became of it."""
    parts = []
    for d in [*evaluation.directions, *evaluation.transductive]:
        items = [evaluation.items[cast(Modality, d.query)].each[i] for i in d.each.item]
        count = len(items)
        columns = {
            "query": pa.array([d.query] * count),
            "gallery": pa.array([d.gallery] * count),
            "mode": pa.array([d.mode] * count),
            "item": pa.array([str(item.source) for item in items]),
            "row": pa.array([item.row for item in items]),
            "group": pa.array([item.group for item in items]),
            "label": pa.array([item.label for item in items], pa.string()),
            "right": pa.array(d.each.right),
            "rank": pa.array(d.each.rank),
            **{name: pa.array(each) for name, each in d.each.values.items() if name not in {"mean rank"}},
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def write(evaluation: Evaluation, folder: Path, about: dict[str, Any]) -> list[Path]:
    """The three files of an evaluation into a folder; `about` says in the JSON what was measured on what."""
    directions = [*evaluation.directions, *evaluation.transductive]
    whole = {
        **about,
        "directions": [plain(d) for d in directions],
        "failures": {str(source): reason for source, reason in evaluation.failures.items()},
    }
    paths = [folder / name for name in (JSON_FILE, CSV_FILE, PARQUET_FILE)]
    write_text(paths[0], json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    rows = table(directions)
    write_text(paths[1], csv_text(list(dict.fromkeys(name for row in rows for name in row)), rows))
    with replacing(paths[2]) as temporary:
        pq.write_table(queries(evaluation), temporary)
    return paths
