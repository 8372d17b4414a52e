"""Saving and loading spaces: atomic, deterministic, with clear errors for other files."""

import json
import os

import pytest
import torch
from huggingface_hub import errors as hub_errors
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import have_identical_weights
from triptych.checkpoint import compute_fingerprint, load, resolve_path, save
from triptych.errors import CheckpointError, TriptychError
from triptych.files import atomic_write
from triptych.interfaces import Source


def test_save_and_load_keep_weights_recipe_and_tokenizer(run_dir, tmp_path):
    space = load(run_dir)
    save(space, tmp_path / "copy.safetensors")
    copy = load(tmp_path / "copy.safetensors")
    assert have_identical_weights(space, copy)
    assert copy.recipe == space.recipe
    query = Source("text", "two red bells")
    assert torch.equal(space.embed_one(query).embedding, copy.embed_one(query).embedding)
    assert compute_fingerprint(run_dir) == compute_fingerprint(run_dir / "space.safetensors")


def test_saving_is_deterministic(run_dir, tmp_path):
    space = load(run_dir)
    for index in range(6):
        save(space, tmp_path / f"{index}.safetensors")
    assert len({compute_fingerprint(tmp_path / f"{index}.safetensors") for index in range(6)}) == 1


def test_file_permissions_follow_the_umask(run_dir):
    mask = os.umask(0)
    os.umask(mask)
    assert (run_dir / "space.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def test_errors_name_changed_headers_and_weights(run_dir, tmp_path):
    with safe_open(run_dir / "space.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["triptych"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path = tmp_path / "changed.safetensors"
    tokenizer = json.loads(header["files"]["text"]["tokenizer.json"])
    slow_pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    pattern = {"text": {"tokenizer.json": json.dumps({**tokenizer, "pre_tokenizer": slow_pattern})}}
    nan = {**tensors, "space.heads.text.linear.weight": tensors["space.heads.text.linear.weight"] * float("nan")}
    cases = [
        ({**header, "files": {"text": {"tokenizer.json": "no"}}}, tensors, "tokenizer.json cannot be read"),
        (
            {**header, "files": pattern},
            tensors,
            r"changed.safetensors: the saved tokenizer.json splits texts differently",
        ),
        ({**header, "files": 3}, tensors, "do not fit together"),
        ({k: v for k, v in header.items() if k != "recipe"}, tensors, "do not fit together"),
        ({**header, "recipe": "name = 3"}, tensors, "the recipe in"),
        (header, dict(list(tensors.items())[1:]), "do not fit together"),
        (header, nan, "heads.text.linear.weight contain NaN"),
        ([], tensors, "not a space file"),
    ]
    for changed, weights, message in cases:
        save_file(weights, path, metadata={"triptych": json.dumps(changed)})
        with pytest.raises(TriptychError, match=message):
            load(path)


def test_have_identical_weights_notices_one_changed_weight(run_dir):
    first, second = load(run_dir), load(run_dir)
    next(second.parameters()).data.view(-1)[0] += 1e-3
    assert not have_identical_weights(first, second)


def test_errors_name_files_that_are_not_spaces(run_dir, tmp_path):
    (tmp_path / "text.safetensors").write_text("no")
    content = (run_dir / "space.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    cases = {
        "missing": "no such run folder",
        "text.safetensors": "cannot be read as safetensors",
        "cut.safetensors": "may be truncated",
        "other.safetensors": "not a space file",
        ".": "no space.safetensors in this folder",
    }
    for name, message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / name)


def test_an_interrupted_atomic_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("old")

    def interrupted():
        with atomic_write(path) as temp_path:
            temp_path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert path.read_text() == "old"
    with atomic_write(path) as temp_path:
        temp_path.write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert path.read_text() == "new"


def test_resolve_path_accepts_a_folder_or_a_file(run_dir):
    assert resolve_path(run_dir) == resolve_path(run_dir / "space.safetensors")


def test_a_file_of_another_format_version_is_an_error(run_dir, tmp_path):
    with safe_open(resolve_path(run_dir), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        header = json.loads(file.metadata()["triptych"])
    save_file(tensors, tmp_path / "old.safetensors", {"triptych": json.dumps(header | {"format_version": "space-1"})})
    with pytest.raises(CheckpointError, match=r"saved by another version of triptych \(space-1\)"):
        load(tmp_path / "old.safetensors")


def test_only_names_with_the_hub_prefix_are_downloaded(monkeypatch):
    requested = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: requested.append(name) or 1 / 0)
    with pytest.raises(CheckpointError, match="runs/typo: no such run folder"):
        load("runs/typo")
    assert not requested, "a mistyped folder caused a network request"
    with pytest.raises(
        CheckpointError, match="hf:openai/clip: cannot be downloaded from the Hugging Face hub: division"
    ):
        load("hf:openai/clip")
    assert requested == ["openai/clip"]


def make_hub_error(name):
    """Create an error of huggingface_hub without the HTTP response that some of them require."""
    error_class = getattr(hub_errors, name)
    return error_class.__new__(
        error_class, "Cannot find an appropriate cached snapshot folder for the specified revision."
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            make_hub_error("LocalEntryNotFoundError"),
            "the Hugging Face hub cannot be reached, and the model has not been",
        ),
        (make_hub_error("OfflineModeIsEnabled"), "the Hugging Face hub cannot be reached, and the model has not been"),
        (
            make_hub_error("RepositoryNotFoundError"),
            "has no public model of this name; if the model is private",
        ),
        (make_hub_error("GatedRepoError"), "accept the terms on its page on the hub, then run: hf auth login"),
        (make_hub_error("HFValidationError"), "not a valid model name on the Hugging Face hub"),
        (ImportError("no huggingface_hub"), r"run: pip install 'triptych\[pretrained\]'"),
        (ValueError("odd\nlines"), r"cannot be downloaded from the Hugging Face hub: odd$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_hub_errors_are_explained(monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=rf"^hf:some/model: .*{message}") as caught:
        load("hf:some/model")
    assert type(error).__name__ not in str(caught.value)


@pytest.mark.parametrize("zeroed", ["", "heads.image.", "encoders.image."])
def test_weights_that_give_constant_embeddings_are_an_error(run_dir, tmp_path, zeroed):
    space = load(run_dir)
    with torch.no_grad():
        for name, weights in space.named_parameters():
            if name.startswith(zeroed):
                weights.zero_()
    save(space, tmp_path / "space.safetensors")
    with pytest.raises(CheckpointError, match=r"space\.safetensors: every image gets the same embedding.*train"):
        load(tmp_path / "space.safetensors")
