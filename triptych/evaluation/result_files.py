"""Write evaluation results as JSON, as CSV with one row per direction, and as Parquet with one row per query."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from triptych.csv_files import format_csv
from triptych.evaluation.evaluate import Evaluation
from triptych.evaluation.retrieval import MEAN_RANK, RetrievalResult
from triptych.files import atomic_write, write_text
from triptych.interfaces import Modality

JSON_FILE, CSV_FILE, PARQUET_FILE = "evaluation.json", "evaluation.csv", "queries.parquet"


def retrieval_to_dict(direction: RetrievalResult) -> dict[str, Any]:
    """Return the result of one retrieval direction as JSON-compatible data, with metrics as fractions."""
    # `recall` has the same values as R@k in `metrics`, with k as the key.
    names = ("query", "gallery", "mode", "num_queries", "num_items", "recall", "chance_recall", "metrics")
    values = {name: getattr(direction, name) for name in (*names, "chance_levels")}
    return values | {"intervals": {name: [x.low, x.high] for name, x in direction.intervals.items()}}


def build_table(directions: Sequence[RetrievalResult]) -> list[dict[str, Any]]:
    """Return one flat row per direction, with the value, the interval and the chance level of every metric."""
    rows = []
    for d in directions:
        row: dict[str, Any] = {key: value for key, value in retrieval_to_dict(d).items() if not isinstance(value, dict)}
        for name, value in d.metrics.items():
            row[name] = value
            if name in d.intervals:
                row |= {f"{name} low": d.intervals[name].low, f"{name} high": d.intervals[name].high}
            if name in d.chance_levels:
                row[f"{name} chance"] = d.chance_levels[name]
        rows.append(row)
    return rows


def build_query_table(evaluation: Evaluation) -> pa.Table:
    """Return a table with one row per query and direction, with the item, the group and the metrics of the query."""
    parts = []
    for d in [*evaluation.directions, *evaluation.transductive]:
        items = [evaluation.items[cast(Modality, d.query)].entries[i] for i in d.per_query.item_index]
        columns: dict[str, Any] = {name: [getattr(d, name)] * len(items) for name in ("query", "gallery", "mode")}
        columns["item"] = [str(item.source) for item in items]
        columns |= {name: [getattr(item, name) for item in items] for name in ("row", "group", "label")}
        columns["label"] = pa.array(columns["label"], pa.string())  # the type, in case that no item has a label
        columns |= {name: getattr(d.per_query, name) for name in ("num_positives", "best_rank")}
        columns |= {name: values for name, values in d.per_query.values.items() if name != MEAN_RANK}
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def write_results(evaluation: Evaluation, folder: Path, metadata: dict[str, Any]) -> list[Path]:
    """Write an evaluation as JSON, CSV and Parquet into a folder. The JSON file starts with `metadata`."""
    directions = [*evaluation.directions, *evaluation.transductive]
    document = {
        **metadata,
        "directions": [retrieval_to_dict(d) for d in directions],
        "failures": {str(source): reason for source, reason in evaluation.failures.items()},
    }
    paths = [folder / name for name in (JSON_FILE, CSV_FILE, PARQUET_FILE)]
    write_text(paths[0], json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    rows = build_table(directions)
    write_text(paths[1], format_csv(list(dict.fromkeys(name for row in rows for name in row)), rows))
    with atomic_write(paths[2]) as temporary:
        pq.write_table(build_query_table(evaluation), temporary)
    return paths
