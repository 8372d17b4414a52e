"""The best epoch is kept, training stops when nothing gets better, and a resumed run knows where it stood."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from tests.conftest import have_identical_weights
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import Loader
from triptych.errors import RecipeError, TrainingError
from triptych.evaluation.evaluate import evaluate
from triptych.interfaces import Encoder, Modality
from triptych.space import Space
from triptych.training import loop
from triptych.training.loop import train
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer, freeze_parameters, set_learning_rates
from triptych.training.training_data import load_training_data, split_into_windows
from triptych.training.validation import EarlyStopping, compute_validation_score


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def with_training(recipe, **changes):
    return replace(recipe, training=replace(recipe.training, **changes))


def test_early_stopping_counts_evaluations_since_the_best():
    early_stopping = EarlyStopping()
    assert early_stopping.is_best
    assert not str(early_stopping)
    for score, best, num_bad_evals in [(10.0, 10.0, 0), (9.0, 10.0, 1), (10.0, 10.0, 2), (11.0, 11.0, 0)]:
        early_stopping = early_stopping.update(score)
        assert (early_stopping.best, early_stopping.last, early_stopping.num_bad_evals) == (best, score, num_bad_evals)
    assert not EarlyStopping(1.0, 0.5, 2).should_stop(0)
    assert not EarlyStopping(1.0, 0.5, 2).should_stop(3)
    assert EarlyStopping(1.0, 0.5, 3).should_stop(3)
    assert "best 1.0" in str(EarlyStopping(1.0, 0.5, 3))


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
    # the schedule is that of four epochs, so two epochs of it are what an interruption would have left
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
        "and the last is seen"
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
        monkeypatch.setattr(loop, "compute_validation_score", lambda *_, seen=remaining: next(seen))
        with suppress(StopIteration):
            train(recipe, tmp_path / "run", show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 5
    assert load(tmp_path / "run").history["epochs"] == 2


def test_validation_rows_come_from_the_validation_split(tiny_recipe):
    data = load_training_data(tiny_recipe, show_progress=False)
    table = manifest.read(tiny_recipe.data.manifest)
    assert [row.id for row in data.valid] == [row.id for row in table.split("valid").rows]
    assert [row.id for row in data.train] == [row.id for row in table.split("train").rows]
    assert data.valid


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
    assert "no row of split valid has a trained pair: no validation, the last epoch is saved" in capsys.readouterr().err
    assert space.history["epochs"] == recipe.training.epochs


def test_frozen_modules_stay_in_eval_mode(tiny_recipe):
    space = Space(tiny_recipe)
    freeze_parameters(space, ("encoders.image",))
    space.train()
    assert not any(module.training for module in space.encoders["image"].modules())
    assert all(module.training for module in space.encoders["text"].modules())


def test_early_stopping_also_holds_after_a_resume(tiny_recipe, tmp_path, monkeypatch):
    scores = iter([5.0, 4.0, 3.0, 9.0])
    monkeypatch.setattr(loop, "compute_validation_score", lambda *_: next(scores))
    recipe = with_training(tiny_recipe, eval_every=1, epochs=4, patience=2)
    best = train(recipe, tmp_path / "run", show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 3
    assert have_identical_weights(train(recipe, tmp_path / "run", show_progress=False), best)
    assert len(read_metrics(tmp_path / "run")) == 3, "a run that has stopped must not go on when it is started again"


def test_learning_rates_weight_decay_and_freezing_apply_to_their_parameters(tiny_recipe):
    torch.manual_seed(0)
    recipe = with_training(
        tiny_recipe, encoder_lr_scale=0.1, optimizer="sgd", freeze=("encoders.image",), warmup_ratio=0.0
    )
    space = Space(recipe)
    objectives = ObjectiveSet(recipe)
    optimizer = build_optimizer(recipe, space, objectives)
    set_learning_rates(optimizer, recipe, 0, 10)
    learning_rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    weight_decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in space.named_parameters():
        if name.startswith("encoders.image"):
            assert id(parameter) not in learning_rates
        else:
            assert learning_rates[id(parameter)] == pytest.approx((0.1 if name.startswith("encoders") else 1.0) * 1e-3)
            assert (weight_decays[id(parameter)] > 0) == (parameter.dim() >= 2)
    with pytest.raises(RecipeError, match=r"no parameter starts with 'encoders\.nose'"):
        build_optimizer(with_training(tiny_recipe, freeze=("encoders.nose",)), Space(tiny_recipe), objectives)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"optimizer": "sgd", "learning_rate": 0.1}, {"precision": "bfloat16"}])
def test_sgd_and_bfloat16_learn_and_resume(tiny_recipe, tmp_path, changes):
    recipe = with_training(tiny_recipe, epochs=4, **changes)
    uninterrupted = train(recipe, tmp_path / "whole", show_progress=False)
    losses = [line["loss"] for line in read_metrics(tmp_path / "whole")]
    assert losses[-1] < losses[0]
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        patch.setattr(loop.RunDirectory, "log_skipped", lambda *_: calls.append(1) if len(calls) < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe, tmp_path / "broken", show_progress=False)
    assert have_identical_weights(train(recipe, tmp_path / "broken", show_progress=False), uninterrupted)


def test_data_weights_set_how_often_a_modality_set_is_drawn(tiny_recipe):
    rows = manifest.read(tiny_recipe.data.manifest).rows
    space = Space(tiny_recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    mixed_rows = [replace(row, audio=None) for row in rows[:32]] + list(rows[32:64])
    pairs = tiny_recipe.objectives[0].pairs
    unweighted = Loader(mixed_rows, encoders, pairs, 8, 0)
    doubled = Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-text": 2.0})
    zero_weighted = Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-text": 0.0})
    assert unweighted.steps_per_epoch == 8
    assert doubled.steps_per_epoch == 12
    assert zero_weighted.steps_per_epoch == 5, "a kind is drawn at least once: leave its rows out to leave it out"
    with pytest.raises(
        TrainingError, match=r"data\.sampling_weights: modality set 'image-txt' is unknown.*'image-text'"
    ):
        Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-txt": 2.0})


def test_groups_of_several_manifests_stay_separate(tiny_recipe, tmp_path):
    two_manifests = replace(tiny_recipe, data=replace(tiny_recipe.data, extra_manifests=(tiny_recipe.data.manifest,)))
    one, two = (
        loop.load_training_data(tiny_recipe, show_progress=False),
        loop.load_training_data(two_manifests, show_progress=False),
    )
    assert len(two.train) == 2 * len(one.train)
    assert len({row.group for row in two.train}) == 2 * len({row.group for row in one.train})
    assert two.data_hash != one.data_hash


def test_modalities_without_rows_are_dropped(tiny_recipe, tmp_path):
    table = manifest.read(tiny_recipe.data.manifest)
    path = tmp_path / "rows.jsonl"
    records = [{"image": str(r.image), "text": r.texts[0], "split": r.split} for r in table.rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in records))
    data = replace(tiny_recipe.data, manifest=str(path), allow_outside=True)
    space = train(replace(tiny_recipe, data=data), tmp_path / "run", show_progress=False)
    assert space.modalities == ("image", "text")
    with pytest.raises(RecipeError, match=r"the data has only text; the recipe trains on"):
        tiny_recipe.restrict_to(["text"])


def test_long_audio_is_split_into_windows(tmp_path):
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 7), 16_000)
    soundfile.write(tmp_path / "short.wav", np.zeros(16_000), 16_000)
    (tmp_path / "m.csv").write_text("audio,text,start,end\nlong.wav,a,,\nshort.wav,b,,\nlong.wav,a,1,6\n")
    rows = manifest.read(tmp_path / "m.csv").rows
    windows = [(row.texts[0], row.start, row.end) for row in split_into_windows(rows, 3.0, 2.0)]
    assert windows == [
        *[("a", start, start + 3.0) for start in (0.0, 2.0, 4.0)],
        ("b", None, None),
        *[("a", start, start + 3.0) for start in (1.0, 3.0)],
    ]
    assert len({row.id for row in split_into_windows(rows, 3.0, 2.0)}) == 6
    assert [row.start for row in split_into_windows(rows[:1], 3.0, 0.0)] == [0.0, 3.0, 4.0]
