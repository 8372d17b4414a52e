"""Whether a space exists, without slow imports."""

import pytest

from triptych.errors import CheckpointError
from triptych.spaces.presence import BRIDGE_FILE, check_space


@pytest.mark.parametrize(
    "name",
    ["starter", "hf:a/b", "st:a/b", "file.safetensors", "run", "model", "run+starter", "a+b", "bridge", "a+b+run"],
)
def test_spaces_that_may_exist_pass(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.safetensors").touch()
    (tmp_path / "a+b").touch()
    for folder, file in (("run", "space.safetensors"), ("model", "config.json"), ("bridge", BRIDGE_FILE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    check_space(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/none", "runs/none: no such run folder or space file; create it with `triptych train`"),
        ("starter+none", "^none: no such run folder"),
        ("empty", r"empty: no space\.safetensors in this folder, and no joint model"),
        ("hf:a/b+none", "^none: no such run folder"),
        ("starter+", "a name is empty"),
        ("", "no space.safetensors in this folder"),
    ],
)
def test_missing_spaces_are_errors(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=message):
        check_space(name)
