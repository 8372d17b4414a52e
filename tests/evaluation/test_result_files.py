"""The three result files of an evaluation can be read back and agree."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation import result_files
from triptych.evaluation.evaluate import evaluate


@pytest.fixture(scope="module")
def result(run_dir, synthetic_manifest):
    return evaluate(load(run_dir), manifest.read(synthetic_manifest).rows[:20], show_progress=False)


def test_json_csv_and_parquet_agree(result, tmp_path):
    paths = result_files.write_results(result, tmp_path / "out", {"run": "mine"})
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)
    document = json.loads(paths[0].read_text())
    assert document["run"] == "mine"
    with paths[1].open() as file:
        rows = list(csv.DictReader(file))
    query_rows = pq.read_table(paths[2]).to_pylist()
    assert len(document["directions"]) == len(rows) == 6
    for d, row in zip(document["directions"], rows, strict=True):
        direction_queries = [q for q in query_rows if (q["query"], q["gallery"]) == (d["query"], d["gallery"])]
        assert len(direction_queries) == d["num_queries"] == int(row["num_queries"])
        for name in ("R@1", "R@5", "R@10", "mAP@10", "mAP@16", "nDCG@10"):
            value = d["metrics"][name]
            assert float(row[name]) == value
            assert sum(q[name] for q in direction_queries) / len(direction_queries) == pytest.approx(value)
            assert d["intervals"][name] == [float(row[f"{name} low"]), float(row[f"{name} high"])]
            assert float(row[f"{name} chance"]) == d["chance_levels"][name]
        assert sum(q["best_rank"] for q in direction_queries) / len(direction_queries) == pytest.approx(
            d["metrics"]["mean rank"]
        )


def test_query_table_identifies_each_query(result, synthetic_manifest):
    rows = {row.id: row for row in manifest.read(synthetic_manifest).rows[:20]}
    for query in result_files.build_query_table(result).to_pylist():
        row = rows[query["row"]]
        assert query["group"] == row.group
        assert query["label"] == row.label
        assert query["item"] in {str(row.image), str(row.audio), *row.texts}
