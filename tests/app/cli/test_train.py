"""The `triptych train` command."""

import pytest

from tests.app.cli.run_cli import interrupt, triptych

pytestmark = pytest.mark.slow


def test_train_reads_every_manifest(synthetic_manifest, tmp_path):
    result = triptych("train", "trimodal", "--data", synthetic_manifest, "--data", "missing.csv", cwd=tmp_path)
    assert (result.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "missing.csv: no such file" in result.stderr


def test_unwritable_output_folder_is_named(tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "recipe.toml").write_text(tiny_recipe.to_toml())
    result = triptych("train", tmp_path / "recipe.toml", "-o", tmp_path / "file" / "run")
    assert result.returncode == 2
    assert "file" in result.stderr
    assert "Traceback" not in result.stderr


def test_interrupted_training_leaves_complete_files(tiny_recipe, tmp_path):
    (tmp_path / "long.toml").write_text(tiny_recipe.to_toml().replace("epochs = 2", "epochs = 500"))
    run = tmp_path / "run"
    code, errors = interrupt(["train", "long.toml", "-o", run], (run / "last.safetensors").exists, tmp_path)
    assert code == 130
    assert "Traceback" not in errors
    assert not list(run.glob(".*")), "a partially written file is left"
    assert triptych("search", "x", "--collection", run).returncode == 2
    from triptych.checkpoint import load

    load(run / "last.safetensors")


def test_train_logs_to_tensorboard(tiny_recipe, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    (tmp_path / "recipe.toml").write_text(tiny_recipe.to_toml())
    result = triptych("train", "recipe.toml", "-o", "run", "--log", "tensorboard", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    unknown = triptych("train", "recipe.toml", "-o", "other", "--log", "paper", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "logger 'paper' is unknown; known: mlflow, tensorboard, trackio, wandb" in unknown.stderr
    assert not (tmp_path / "other").exists()
