"""The best epoch is kept, training stops when nothing gets better, and a resumed run knows where it stood."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from tests.conftest import identical
from triptych.checkpoint import load
from triptych.contracts import Encoder, Modality
from triptych.data import manifest
from triptych.data.loader import Loader
from triptych.errors import RecipeError, TrainingError
from triptych.evaluation.evaluate import evaluate
from triptych.space import Space
from triptych.training import loop
from triptych.training.loop import train
from triptych.training.optimizer import freeze, optimizer_of, set_rates
from triptych.training.rows import learnable, windowed
from triptych.training.terms import Terms
from triptych.training.validation import Standing, score


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def with_training(recipe, **changes):
    return replace(recipe, training=replace(recipe.training, **changes))


def test_standing_counts_looks_since_the_best():
    standing = Standing()
    assert standing.is_best
    assert not str(standing)
    for found, best, since in [(10.0, 10.0, 0), (9.0, 10.0, 1), (10.0, 10.0, 2), (11.0, 11.0, 0)]:
        standing = standing.after(found)
        assert (standing.best, standing.last, standing.since) == (best, found, since)
    assert not Standing(1.0, 0.5, 2).is_over(0)
    assert not Standing(1.0, 0.5, 2).is_over(3)
    assert Standing(1.0, 0.5, 3).is_over(3)
    assert "best 1.0" in str(Standing(1.0, 0.5, 3))


def test_the_score_is_the_mean_recall_of_the_trained_pairs(quick, run):
    space = load(run)
    rows = manifest.read(quick.data.manifest).split("valid").rows
    found = evaluate(space, rows, show=False).directions
    by_hand = [d.recall[k] for d in found if {d.query, d.gallery} == {"image", "text"} for k in (1, 5, 10)]
    (use,) = quick.objectives
    only = replace(quick, objectives=(replace(use, pairs=(("image", "text"),)),))
    assert len(by_hand) == 6
    assert score(space, rows, only) == pytest.approx(100 * sum(by_hand) / 6)


@pytest.mark.slow
def test_the_best_epoch_is_the_one_that_is_kept(quick, tmp_path, monkeypatch):
    scores = iter([3.0, 7.0, 5.0, 6.0])
    monkeypatch.setattr(loop, "score", lambda *_: next(scores))
    recipe = with_training(quick, validate=1, epochs=4)
    best = train(recipe, tmp_path / "run", show=False)
    assert [line["valid"] for line in lines(tmp_path / "run")] == [3.0, 7.0, 5.0, 6.0]
    # the schedule is that of four epochs, so two epochs of it are what an interruption would have left
    interrupted = iter([1.0, 2.0])
    monkeypatch.setattr(loop, "score", lambda *_: next(interrupted))
    with pytest.raises(StopIteration):
        train(recipe, tmp_path / "two", show=False)
    assert identical(best, load(tmp_path / "two"))


@pytest.mark.slow
def test_an_epoch_that_nobody_looked_at_is_not_the_best(quick, tmp_path, monkeypatch):
    scores = iter([9.0, 5.0, 4.0])
    monkeypatch.setattr(loop, "score", lambda *_: next(scores))
    best = train(with_training(quick, validate=2, epochs=5), tmp_path / "run", show=False)
    assert [line.get("valid") for line in lines(tmp_path / "run")] == [None, 9.0, None, 5.0, 4.0], (
        "and the last is seen"
    )
    assert (best.history["epochs"], best.history["valid"]) == (2, 9.0)
    interrupted = iter([1.0])
    monkeypatch.setattr(loop, "score", lambda *_: next(interrupted))
    with pytest.raises(StopIteration):
        train(with_training(quick, validate=2, epochs=5), tmp_path / "two", show=False)
    assert identical(best, load(tmp_path / "two"))


@pytest.mark.slow
def test_the_best_epoch_survives_an_interruption_between_two_looks(quick, tmp_path, monkeypatch):
    recipe = with_training(quick, validate=2, epochs=5)
    for scores in ([9.0], [5.0, 4.0]):
        seen = iter(scores)
        monkeypatch.setattr(loop, "score", lambda *_, seen=seen: next(seen))
        with suppress(StopIteration):
            train(recipe, tmp_path / "run", show=False)
    assert len(lines(tmp_path / "run")) == 5
    assert load(tmp_path / "run").history["epochs"] == 2


def test_validation_rows_are_those_of_their_split_and_no_others(quick):
    found = learnable(quick, show=False)
    table = manifest.read(quick.data.manifest)
    assert [row.id for row in found.valid] == [row.id for row in table.split("valid").rows]
    assert [row.id for row in found.train] == [row.id for row in table.split("train").rows]
    assert found.valid


def test_rows_that_cannot_judge_a_trained_pair_are_not_asked(quick, tmp_path, capsys):
    table = manifest.read(quick.data.manifest)
    lines = ["image,audio,text,split"]
    for row in table.rows:
        if row.split == "valid":
            lines.append(f",{row.audio},{row.id},valid")
        elif row.split == "train":
            lines.append(f"{row.image},,{row.id},train")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("\n".join(lines))
    data = replace(quick.data, manifest=str(pairs), allow_outside=True)
    (use,) = quick.objectives
    recipe = with_training(
        replace(quick, data=data, objectives=(replace(use, pairs=(("image", "text"),)),)), validate=1
    )
    space = train(recipe, tmp_path / "run")
    assert "no row of split valid has a pair that is trained: the last epoch will be kept" in capsys.readouterr().err
    assert space.history["epochs"] == recipe.training.epochs


def test_what_is_frozen_stays_as_it_is_in_use_with_its_norms(quick):
    space = Space(quick)
    freeze(space, ("encoders.image",))
    space.train()
    assert not any(module.training for module in space.encoders["image"].modules())
    assert all(module.training for module in space.encoders["text"].modules())


def test_training_stops_when_nothing_gets_better_and_stays_stopped(quick, tmp_path, monkeypatch):
    scores = iter([5.0, 4.0, 3.0, 9.0])
    monkeypatch.setattr(loop, "score", lambda *_: next(scores))
    recipe = with_training(quick, validate=1, epochs=4, patience=2)
    best = train(recipe, tmp_path / "run", show=False)
    assert len(lines(tmp_path / "run")) == 3
    assert identical(train(recipe, tmp_path / "run", show=False), best)
    assert len(lines(tmp_path / "run")) == 3, "a run that has stopped must not go on when it is started again"


def test_rates_decay_and_freezing_reach_the_parameters_they_name(quick):
    torch.manual_seed(0)
    recipe = with_training(quick, encoder_rate=0.1, optimizer="sgd", freeze=("encoders.image",), warmup=0.0)
    space = Space(recipe)
    terms = Terms(recipe)
    optimizer = optimizer_of(recipe, space, terms)
    set_rates(optimizer, recipe, 0, 10)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in space.named_parameters():
        if name.startswith("encoders.image"):
            assert id(parameter) not in rate
        else:
            assert rate[id(parameter)] == pytest.approx((0.1 if name.startswith("encoders") else 1.0) * 1e-3)
            assert (decay[id(parameter)] > 0) == (parameter.dim() >= 2)
    with pytest.raises(RecipeError, match=r"no parameter begins with 'encoders\.nose'"):
        optimizer_of(with_training(quick, freeze=("encoders.nose",)), Space(quick), terms)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"optimizer": "sgd", "learning_rate": 0.1}, {"precision": "bfloat16"}])
def test_sgd_and_half_precision_learn_and_resume(quick, tmp_path, changes):
    recipe = with_training(quick, epochs=4, **changes)
    whole = train(recipe, tmp_path / "whole", show=False)
    losses = [line["loss"] for line in lines(tmp_path / "whole")]
    assert losses[-1] < losses[0]
    with pytest.MonkeyPatch.context() as patch:
        saved = []
        patch.setattr(loop.Run, "leave_out", lambda *_: saved.append(1) if len(saved) < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe, tmp_path / "broken", show=False)
    assert identical(train(recipe, tmp_path / "broken", show=False), whole)


def test_weights_say_how_often_a_kind_is_drawn(quick):
    rows = manifest.read(quick.data.manifest).rows
    space = Space(quick)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    some = [replace(row, audio=None) for row in rows[:32]] + list(rows[32:64])
    pairs = quick.objectives[0].pairs
    plain = Loader(some, encoders, pairs, 8, 0)
    twice = Loader(some, encoders, pairs, 8, 0, weights={"image-text": 2.0})
    none = Loader(some, encoders, pairs, 8, 0, weights={"image-text": 0.0})
    assert plain.steps == 8
    assert twice.steps == 12
    assert none.steps == 5, "a kind is drawn at least once: leave its rows out to leave it out"
    with pytest.raises(TrainingError, match=r"data\.weights: kind of row 'image-txt' is unknown.*'image-text'"):
        Loader(some, encoders, pairs, 8, 0, weights={"image-txt": 2.0})


def test_rows_of_several_manifests_are_learned_and_their_groups_kept_apart(quick, tmp_path):
    both = replace(quick, data=replace(quick.data, also=(quick.data.manifest,)))
    one, two = loop.learnable(quick, show=False), loop.learnable(both, show=False)
    assert len(two.train) == 2 * len(one.train)
    assert len({row.group for row in two.train}) == 2 * len({row.group for row in one.train})
    assert two.hash != one.hash


def test_modalities_that_the_data_lacks_are_left_out(quick, tmp_path):
    table = manifest.read(quick.data.manifest)
    folder = tmp_path / "rows.jsonl"
    some = [{"image": str(r.image), "text": r.texts[0], "split": r.split} for r in table.rows]
    folder.write_text("".join(json.dumps(row) + "\n" for row in some))
    data = replace(quick.data, manifest=str(folder), allow_outside=True)
    space = train(replace(quick, data=data), tmp_path / "run", show=False)
    assert space.modalities == ("image", "text")
    with pytest.raises(RecipeError, match=r"the data has only text; the recipe learns"):
        quick.only(["text"])


def test_long_sounds_can_be_learned_from_window_by_window(tmp_path):
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 7), 16_000)
    soundfile.write(tmp_path / "short.wav", np.zeros(16_000), 16_000)
    (tmp_path / "m.csv").write_text("audio,text,start,end\nlong.wav,a,,\nshort.wav,b,,\nlong.wav,a,1,6\n")
    rows = manifest.read(tmp_path / "m.csv").rows
    found = [(row.texts[0], row.start, row.end) for row in windowed(rows, 3.0, 2.0)]
    assert found == [
        *[("a", start, start + 3.0) for start in (0.0, 2.0, 4.0)],
        ("b", None, None),
        *[("a", start, start + 3.0) for start in (1.0, 3.0)],
    ]
    assert len({row.id for row in windowed(rows, 3.0, 2.0)}) == 6
    assert [row.start for row in windowed(rows[:1], 3.0, 0.0)] == [0.0, 3.0, 4.0]
