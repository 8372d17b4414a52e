"""TREC qrels and run files: round trips, real readers of other libraries, and error messages."""

import doctest

import numpy as np
import pytest
import torch

from triptych.errors import InputError
from triptych.evaluation import trec_files
from triptych.evaluation.score_matrix import evaluate_scores
from triptych.evaluation.trec_files import make_run_scores, read_qrels, read_run, write_qrels, write_run


def test_examples_in_docstrings():
    assert doctest.testmod(trec_files).failed == 0


def test_qrels_survive_a_round_trip(tmp_path):
    qrels = {"q1": {"a.wav": 2.0, "b.wav": 0.0}, "q2": {"ü.wav": 1.0}}
    write_qrels(tmp_path / "qrels.txt", qrels)
    assert read_qrels(tmp_path / "qrels.txt") == qrels
    write_qrels(tmp_path / "sets.txt", {"q1": {"b", "a"}})
    assert (tmp_path / "sets.txt").read_text() == "q1 0 a 1\nq1 0 b 1\n"


def test_runs_survive_a_round_trip(tmp_path):
    scores = torch.rand(4, 6, dtype=torch.double)
    scores[1, 2] = -torch.inf
    queries, items = list("wxyz"), list("abcdef")
    write_run(tmp_path / "run.txt", scores, queries, items)
    run = read_run(str(tmp_path / "run.txt"))
    assert "c" not in run["x"]
    assert np.array_equal(make_run_scores(run, queries, items), scores.numpy())
    write_run(tmp_path / "short.txt", scores, queries, items, depth=2, tag="mine")
    lines = [line.split() for line in (tmp_path / "short.txt").read_text().splitlines()]
    assert [line[3] for line in lines] == ["1", "2"] * 4
    assert {line[5] for line in lines} == {"mine"}


def test_files_with_tabs_blank_lines_and_a_byte_order_mark_are_read(tmp_path):
    (tmp_path / "qrels.txt").write_bytes("\ufeffq1\t0\ta\t1\r\n\r\nq1 Q0  b 3\r\n".encode())
    assert read_qrels(tmp_path / "qrels.txt") == {"q1": {"a": 1, "b": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 a 1\n", r"line 1: 3 columns; need 4: query iteration document grade"),
        ("q1 0 a 1\nq1 0 b high\n", r"line 2: grade 'high' is not a number"),
        ("q1 0 a nan\n", r"line 1: grade 'nan' is not a number"),
        ("q1 0 a 1\nq1 0 a 2\n", r"line 2: query 'q1' and document 'a' occur twice"),
    ],
)
def test_invalid_qrels_files_raise(tmp_path, text, message):
    (tmp_path / "qrels.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_qrels(tmp_path / "qrels.txt")


def test_missing_files_raise(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt: cannot be read"):
        read_run(tmp_path / "none.txt")


def test_values_that_the_format_does_not_allow_raise(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(InputError, match=r"grade 0\.5; need an integer"):
        write_qrels(path, {"q": {"a": 0.5}})
    with pytest.raises(InputError, match="id 'a dog barks' is empty or contains white space"):
        write_qrels(path, {"a dog barks": {"a"}})
    with pytest.raises(InputError, match=r"scores have shape \(1, 2\), but there are 1 query_ids and 1 gallery_ids"):
        write_run(path, [[1, 2]], ["q"], ["a"])
    with pytest.raises(InputError, match="scores contain NaN"):
        write_run(path, [[np.nan]], ["q"], ["a"])
    with pytest.raises(InputError, match="document 'b' is not in gallery_ids"):
        make_run_scores({"q": {"b": 1.0}}, ["q"], ["a"])
    assert not path.exists()


def test_a_run_and_a_qrels_file_match_trec_eval(tmp_path):
    """pytrec_eval runs the C code of trec_eval: documents that are not in the run count as missed."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="needs pytrec_eval-terrier")
    rng = np.random.default_rng(3)
    queries, items = [f"q{i}" for i in range(30)], [f"d{i}" for i in range(50)]
    write_run(tmp_path / "run.txt", rng.random((30, 50)), queries, items, depth=20)
    grades = rng.integers(0, 4, (30, 52)) * (rng.random((30, 52)) < 0.2)
    grades[:, 0] = 1
    judged = [*items, "absent1", "absent2"]  # never in the gallery
    write_qrels(
        tmp_path / "qrels.txt",
        {q: dict(zip(judged, row, strict=True)) for q, row in zip(queries, grades.tolist(), strict=True)},
    )
    run, qrels = read_run(tmp_path / "run.txt"), read_qrels(tmp_path / "qrels.txt")
    ours = evaluate_scores(
        make_run_scores(run, queries, items),
        tmp_path / "qrels.txt",
        query_ids=queries,
        gallery_ids=items,
        ks=[5, 10, 100],
        num_resamples=0,
    )
    measures = {"success", "recall", "P", "map_cut", "ndcg_cut", "recip_rank"}
    integers = {query: {document: int(grade) for document, grade in row.items()} for query, row in qrels.items()}
    theirs = pytrec_eval.RelevanceEvaluator(integers, measures).evaluate(run)
    names = {"R": "success", "IR recall": "recall", "P": "P", "mAP": "map_cut", "nDCG": "ndcg_cut"}
    pairs = [(f"{a}@{k}", f"{b}_{k}") for a, b in names.items() for k in (5, 10, 100) if (a, k) != ("R", 100)]
    for name, measure in [*pairs, ("MRR@100", "recip_rank")]:
        assert ours.per_query.values[name].tolist() == pytest.approx([theirs[q][measure] for q in queries]), name
