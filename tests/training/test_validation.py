"""The best epoch is saved, and training stops early."""

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.conftest import have_identical_weights
from tests.training.cases import with_training
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation.evaluate import evaluate
from triptych.training import loop
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.validation import compute_validation_score


def test_the_score_is_the_mean_recall_of_the_trained_pairs(tiny_recipe, run_dir):
    space = load(run_dir)
    rows = manifest.read(tiny_recipe.data.manifest).split("valid").rows
    directions = evaluate(space, rows, show_progress=False).directions
    recalls = [d.recall[k] for d in directions if {d.query, d.gallery} == {"image", "text"} for k in (1, 5, 10)]
    (config,) = tiny_recipe.objectives
    image_text_recipe = replace(tiny_recipe, objectives=(replace(config, pairs=(("image", "text"),)),))
    assert len(recalls) == 6
    assert compute_validation_score(space, rows, image_text_recipe) == pytest.approx(100 * sum(recalls) / 6)


@pytest.mark.slow
def test_the_best_epoch_is_saved(tiny_recipe, tmp_path, monkeypatch):
    scores = iter([3.0, 7.0, 5.0, 6.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(scores))
    recipe = with_training(tiny_recipe, eval_every=1, epochs=4)
    best = train(recipe, tmp_path / "run", show_progress=False)
    assert [line["valid"] for line in read_metrics(tmp_path / "run")] == [3.0, 7.0, 5.0, 6.0]
    # the schedule is that of four epochs, so an interruption leaves two epochs of it
    interrupted = iter([1.0, 2.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(interrupted))
    with pytest.raises(StopIteration):
        train(recipe, tmp_path / "two", show_progress=False)
    assert have_identical_weights(best, load(tmp_path / "two"))


@pytest.mark.slow
def test_an_epoch_without_evaluation_is_not_the_best(tiny_recipe, tmp_path, monkeypatch):
    scores = iter([9.0, 5.0, 4.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(scores))
    best = train(with_training(tiny_recipe, eval_every=2, epochs=5), tmp_path / "run", show_progress=False)
    assert [line.get("valid") for line in read_metrics(tmp_path / "run")] == [None, 9.0, None, 5.0, 4.0], (
        "the last epoch is evaluated too"
    )
    assert (best.history["epochs"], best.history["valid"]) == (2, 9.0)
    interrupted = iter([1.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(interrupted))
    with pytest.raises(StopIteration):
        train(with_training(tiny_recipe, eval_every=2, epochs=5), tmp_path / "two", show_progress=False)
    assert have_identical_weights(best, load(tmp_path / "two"))


@pytest.mark.slow
def test_the_best_epoch_survives_an_interruption_between_evaluations(tiny_recipe, tmp_path, monkeypatch):
    recipe = with_training(tiny_recipe, eval_every=2, epochs=5)
    for scores in ([9.0], [5.0, 4.0]):
        remaining = iter(scores)
        monkeypatch.setattr(loop, "compute_validation_score", lambda *_, scores=remaining: next(scores))
        with suppress(StopIteration):
            train(recipe, tmp_path / "run", show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 5
    assert load(tmp_path / "run").history["epochs"] == 2


def test_validation_rows_without_a_trained_pair_are_ignored(tiny_recipe, tmp_path, capsys):
    table = manifest.read(tiny_recipe.data.manifest)
    lines = ["image,audio,text,split"]
    for row in table.rows:
        if row.split == "valid":
            lines.append(f",{row.audio},{row.id},valid")
        elif row.split == "train":
            lines.append(f"{row.image},,{row.id},train")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(lines))
    data = replace(tiny_recipe.data, manifest=str(pairs), allow_outside=True)
    (config,) = tiny_recipe.objectives
    recipe = with_training(
        replace(tiny_recipe, data=data, objectives=(replace(config, pairs=(("image", "text"),)),)), eval_every=1
    )
    space = train(recipe, tmp_path / "run")
    assert "no row of split valid has a trained pair: there is no validation" in capsys.readouterr().err
    assert space.history["epochs"] == recipe.training.epochs


def test_early_stopping_also_holds_after_a_resume(tiny_recipe, tmp_path, monkeypatch):
    scores = iter([5.0, 4.0, 3.0, 9.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(scores))
    recipe = with_training(tiny_recipe, eval_every=1, epochs=4, patience=2)
    best = train(recipe, tmp_path / "run", show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 3
    assert have_identical_weights(train(recipe, tmp_path / "run", show_progress=False), best)
    assert len(read_metrics(tmp_path / "run")) == 3, (
        "a run that stopped early must not continue when it is started again"
    )
