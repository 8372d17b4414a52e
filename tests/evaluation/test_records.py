"""What is written of an evaluation can be read back, and says the same in all three files."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation import records
from triptych.evaluation.evaluate import evaluate


@pytest.fixture(scope="module")
def result(run, world):
    return evaluate(load(run), manifest.read(world).rows[:20], show=False)


def test_json_csv_and_parquet_agree(result, tmp_path):
    paths = records.write(result, tmp_path / "out", {"run": "mine"})
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)
    whole = json.loads(paths[0].read_text())
    assert whole["run"] == "mine"
    with paths[1].open() as file:
        rows = list(csv.DictReader(file))
    every = pq.read_table(paths[2]).to_pylist()
    assert len(whole["directions"]) == len(rows) == 6
    for d, row in zip(whole["directions"], rows, strict=True):
        own = [q for q in every if (q["query"], q["gallery"]) == (d["query"], d["gallery"])]
        assert len(own) == d["queries"] == int(row["queries"])
        for name in ("R@1", "R@5", "R@10", "mAP@10", "mAP@16", "nDCG@10"):
            value = d["metrics"][name]
            assert float(row[name]) == value
            assert sum(q[name] for q in own) / len(own) == pytest.approx(value)
            assert d["interval"][name] == [float(row[f"{name} low"]), float(row[f"{name} high"])]
            assert float(row[f"{name} guessed"]) == d["guessed"][name]
        assert sum(q["rank"] for q in own) / len(own) == pytest.approx(d["metrics"]["mean rank"])


def test_each_query_says_what_it_is(result, world):
    rows = {row.id: row for row in manifest.read(world).rows[:20]}
    for query in records.queries(result).to_pylist():
        row = rows[query["row"]]
        assert query["group"] == row.group
        assert query["label"] == row.label
        assert query["item"] in {str(row.image), str(row.audio), *row.texts}
