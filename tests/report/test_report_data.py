"""Report data: examples, the temperature of match matrices, training history, JSON."""

import json
from dataclasses import replace

import pytest

from tests.conftest import TINY_OVERRIDES
from triptych.data import manifest
from triptych.recipe import Recipe
from triptych.report import report_data
from triptych.training.loop import train

pytestmark = pytest.mark.slow


def test_good_examples_rank_first_and_bad_examples_are_the_worst(report):
    for d, (good, bad) in zip(report.evaluation.directions, report.examples, strict=True):
        assert all(
            example.rank == 1 and example.answers[0].is_positive and example.missed_positive is None for example in good
        )
        assert bad[0].rank == d.per_query.best_rank.max()
        for example in bad:
            assert not any(answer.is_positive for answer in example.answers)
            assert example.missed_positive
            assert (example.missed_positive.is_positive, example.missed_positive.rank) == (True, example.rank)
            assert example.missed_positive.item.group == example.query.group
            scores = [answer.score for answer in (*example.answers, example.missed_positive)]
            assert scores == sorted(scores, reverse=True)


def test_examples_are_of_different_groups(report):
    for good, bad in report.examples:
        for examples in (good, bad):
            assert len({example.query.group for example in examples}) == len(examples)


def test_match_matrices_use_the_trained_epsilon(synthetic_manifest, tmp_path):
    overrides = [
        *TINY_OVERRIDES,
        f"data.manifest={synthetic_manifest}",
        "space.similarity.name=mahalanobis",
        "space.similarity.embed_dim=32",
        "space.similarity.metric=full",
        "space.geometry=free",
        "training.epochs=1",
    ]
    recipe = Recipe.load("trimodal", overrides)
    objectives = tuple(
        replace(objective, name="matching", settings={"epsilon": 0.05}) for objective in recipe.objectives
    )
    train(replace(recipe, objectives=objectives), tmp_path / "run", show_progress=False)
    report = report_data.collect_report_data(tmp_path / "run", manifest.read(synthetic_manifest), show_progress=False)
    assert [matrices.temperature for matrices in report.match_matrices] == [0.05] * 3
    assert {s.modality: s.mean_norm for s in report.geometry.modalities}["text"] != pytest.approx(1)


def test_history_skips_invalid_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}\nnot json\n[1]\n{"epoch": 2, "loss": NaN}\n'
    )
    history = report_data.read_history(tmp_path)
    assert history == [{"epoch": 1, "loss": 2.5, "infonce(image,text).temperature": 0.1}, {"epoch": 2}]
    assert report_data.last_temperatures(history[:1]) == {frozenset(("image", "text")): 0.1}


def test_report_to_dict_is_json(report):
    text = json.dumps(report_data.report_to_dict(report), allow_nan=False)
    again = json.loads(text)
    assert len(again["directions"]) == 6
    assert len(again["geometry"]["modalities"]) == 3
    assert len(again["history"]) == 2
