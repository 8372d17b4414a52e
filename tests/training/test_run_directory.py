"""A run folder is complete and private; foreign files and other runs are not overwritten."""

import getpass
import hashlib
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import have_identical_weights
from tests.training.cases import with_training
from triptych import checkpoint
from triptych.errors import CheckpointError, TrainingError
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer
from triptych.training.run_directory import RunDirectory, load_optimizer_state
from triptych.training.training_data import load_training_data


def test_the_folder_records_environment_and_data(tiny_recipe, run_dir):
    record = json.loads((run_dir / "environment.json").read_text())
    manifest = Path(tiny_recipe.data.manifest)
    assert record["data"] == {manifest.name: hashlib.sha256(manifest.read_bytes()).hexdigest()}
    assert record["packages"]["torch"].startswith("2.")
    assert (record["processes"], record["device"], record["threads"]) == (1, "cpu", 1)
    text = (run_dir / "environment.json").read_text() + (run_dir / "README.md").read_text()
    for private in (str(Path.home()), str(Path.cwd()), str(manifest.parent), socket.gethostname()):
        assert len(private) < 3 or private not in text, private
    assert f"/{getpass.getuser()}" not in text
    card = (run_dir / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: triptych\n")
    assert record["data"][manifest.name] in card


def test_the_space_records_its_epoch_and_validation_score(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, eval_every=1, epochs=3))
    space = train(recipe, tmp_path / "run", show_progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["valid"])
    assert space.history["valid"] == pytest.approx(best["valid"], abs=1e-4)
    assert lines[space.history["epochs"] - 1]["valid"] == best["valid"]
    assert f"{best['valid']:.2f}%" in (tmp_path / "run" / "README.md").read_text()


def test_foreign_files_with_the_names_of_run_files_are_kept(tiny_recipe, run_dir, tmp_path):
    (tmp_path / "recipe.toml").write_text(f"# my notes\n{tiny_recipe.to_toml()}")
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


def test_a_finished_run_is_not_changed(tiny_recipe, run_dir):
    before = (run_dir / "space.safetensors").stat().st_mtime_ns
    train(tiny_recipe, run_dir, show_progress=False)
    assert (run_dir / "space.safetensors").stat().st_mtime_ns == before


def test_a_missing_space_file_is_restored_from_the_training_state(tiny_recipe, run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run" / "space.safetensors").unlink()
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert have_identical_weights(checkpoint.load(tmp_path / "run"), checkpoint.load(run_dir))


def test_optimizer_state_of_other_shapes_raises():
    """torch.optim would load it, and fail or broadcast in the next step."""
    optimizer = torch.optim.AdamW([torch.zeros(2, 3, requires_grad=True)])
    fitting = {"0.step": torch.tensor(1.0), "0.exp_avg": torch.ones(2, 3), "0.exp_avg_sq": torch.ones(2, 3)}
    load_optimizer_state(optimizer, fitting)
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], torch.ones(2, 3))
    with pytest.raises(ValueError, match="does not fit the parameters"):
        load_optimizer_state(optimizer, {**fitting, "0.exp_avg": torch.ones(1, 3)})


def test_a_folder_of_another_run_raises_and_restart_replaces_it(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    other = with_training(tiny_recipe, epochs=1)
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


def test_the_reserved_disk_space_fits_a_run(tiny_recipe, tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(
        "triptych.training.run_directory.check_disk_space", lambda path, required_bytes: reserved.append(required_bytes)
    )
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    space, last = ((tmp_path / "run" / name).stat().st_size for name in ("space.safetensors", "last.safetensors"))
    other_bytes = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file()) - space - last
    assert space + 2 * last + other_bytes < reserved[0] < space + 2 * last + 3e6
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert reserved[1] < last + 3e6, "existing files need no additional space"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files that are mapped")
def test_a_resumed_run_does_not_memory_map_files_it_replaces(tiny_recipe, tmp_path, monkeypatch):
    """A memory-mapped file occupies the disk after it has been replaced, beyond the space that was checked."""
    recipe, folder, save_checkpoints, mapped_files = (
        with_training(tiny_recipe, epochs=3),
        tmp_path / "run",
        RunDirectory.save_checkpoints,
        [],
    )

    def save_and_record(self, *arguments):
        save_checkpoints(self, *arguments)
        mapped_files.append([line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line])
        if len(mapped_files) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "save_checkpoints", save_and_record)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, show_progress=False)
    train(recipe, folder, show_progress=False)
    assert mapped_files == [[], [], []]


def test_a_process_that_does_not_write_takes_no_lock_and_reserves_no_space(tiny_recipe, tmp_path):
    run = RunDirectory(tmp_path / "run", tiny_recipe, load_training_data(tiny_recipe, False), is_writer=False)
    with run.lock():
        space, objectives = Space(tiny_recipe), ObjectiveSet(tiny_recipe)
        run.check_disk_space(space, objectives, build_optimizer(tiny_recipe, space, objectives))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epochs", ["0", "99", "many"])
def test_an_inconsistent_state_raises_instead_of_a_wrong_resume(tiny_recipe, run_dir, tmp_path, epochs):
    shutil.copytree(run_dir, tmp_path / "run")
    state_file = tmp_path / "run" / "last.safetensors"
    space, extra_tensors, header = checkpoint.load_with_extras(state_file)
    metadata = {name: header[name] for name in ("data_hash", "early_stopping")}
    checkpoint.save(space, state_file, extra_tensors, {**metadata, "epochs": epochs})
    with pytest.raises(CheckpointError, match="is inconsistent; use --restart"):
        train(tiny_recipe, tmp_path / "run", show_progress=False)


def test_settings_that_do_not_affect_the_weights_may_change_on_resume(tiny_recipe, run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    data = replace(tiny_recipe.data, workers=tiny_recipe.data.workers + 1, input_cache_mb=7)
    train(replace(tiny_recipe, name="renamed", data=data), tmp_path / "run", show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == tiny_recipe.training.epochs


def test_sgd_reserves_one_tensor_of_optimizer_state_per_parameter(tiny_recipe, tmp_path, monkeypatch):
    reserved = {}
    for optimizer in ("adamw", "sgd"):
        monkeypatch.setattr(
            "triptych.training.run_directory.check_disk_space",
            lambda path, required_bytes, name=optimizer: reserved.setdefault(name, required_bytes),
        )
        train(with_training(tiny_recipe, optimizer=optimizer), tmp_path / optimizer, show_progress=False)
    space = Space(tiny_recipe)
    weights = sum(p.numel() * p.element_size() for p in space.parameters() if p.requires_grad)
    assert reserved["adamw"] - reserved["sgd"] >= 2 * weights
