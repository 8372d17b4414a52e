"""The space of `triptych index`, and the choice of the default space."""

import pytest

from triptych.app import space_choice
from triptych.errors import CheckpointError
from triptych.search.collection import Collection
from triptych.spaces.user_config import read_configured_space


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TRIPTYCH_SPACE", raising=False)


def test_an_existing_collection_keeps_its_space(run_dir, synthetic_manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_SPACE", "starter")
    uri = str(tmp_path / "media")
    assert space_choice.choose_space(uri) == "starter"
    image = synthetic_manifest.parent / "images" / "000001.png"
    Collection(uri, run_dir).add(image, show_progress=False)
    assert space_choice.choose_space(uri) is None
    rebuilt = Collection(uri, rebuild=True)
    assert rebuilt.space_path == Collection(uri).space_path
    assert rebuilt.add(image, show_progress=False).added == 1


def test_use_stores_a_name_that_is_valid_in_every_folder(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    path = space_choice.use_space("run")
    assert read_configured_space() == (str(run_dir), str(path))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    space_choice.use_space("hf:model?truncate_dim=4 + starter")
    assert read_configured_space() == (f"hf:{model}?truncate_dim=4+starter", str(path))
    space_choice.use_space(f"{run_dir}+starter")
    assert read_configured_space() == (f"{run_dir}+starter", str(path))


def test_use_of_a_model_that_cannot_be_downloaded_changes_nothing(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    space_choice.use_space("starter")
    with pytest.raises(CheckpointError, match=r"^hf:nobody/nothing: "):
        space_choice.use_space("hf:nobody/nothing")
    configured = read_configured_space()
    assert configured is not None
    assert configured[0] == "starter"
