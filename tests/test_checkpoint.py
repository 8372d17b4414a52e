"""Saving and loading: whole, atomic, and clear about files that are not ours."""

import pytest
import torch
from safetensors.torch import save_file

from triptych.checkpoint import find, fingerprint, identical, load, replacing, save
from triptych.contracts import Source
from triptych.errors import CheckpointError


def test_a_space_comes_back_with_weights_recipe_and_words(run, tmp_path):
    space = load(run)
    save(space, tmp_path / "copy.safetensors")
    copy = load(tmp_path / "copy.safetensors")
    assert identical(space, copy)
    assert copy.recipe == space.recipe
    query = Source("text", "two red bells")
    assert torch.equal(space.embed_one(query).embedding, copy.embed_one(query).embedding)
    assert fingerprint(run) == fingerprint(run / "space.safetensors")


def test_identical_sees_one_changed_weight(run):
    one, other = load(run), load(run)
    next(other.parameters()).data.view(-1)[0] += 1e-3
    assert not identical(one, other)


def test_files_that_are_not_spaces_are_named(run, tmp_path):
    (tmp_path / "text.safetensors").write_text("no")
    whole = (run / "space.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    cases = {
        "missing": "no such run folder",
        "text.safetensors": "cannot be read as safetensors",
        "cut.safetensors": "may be cut short",
        "other.safetensors": "not a space saved by triptych",
        ".": "no space.safetensors in this folder",
    }
    for name, message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / name)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("old")

    def interrupted():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert path.read_text() == "new"


def test_find_takes_a_folder_or_a_file(run):
    assert find(run) == find(run / "space.safetensors")
