"""Write evaluation results as JSON, as CSV with one row per direction, and as Parquet with one row per query."""

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from triptych.csv_files import format_csv
from triptych.evaluation.evaluate import Evaluation
from triptych.evaluation.retrieval import MEAN_RANK
from triptych.files import atomic_write, write_text
from triptych.interfaces import Modality

JSON_FILE, CSV_FILE, PARQUET_FILE = "evaluation.json", "evaluation.csv", "queries.parquet"


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
    paths = [folder / name for name in (JSON_FILE, CSV_FILE, PARQUET_FILE)]
    document = {**metadata, **evaluation.to_dict()}
    write_text(paths[0], json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    write_text(paths[1], format_csv(evaluation.columns, evaluation.to_rows()))
    with atomic_write(paths[2]) as temporary:
        pq.write_table(build_query_table(evaluation), temporary)
    return paths
