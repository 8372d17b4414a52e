"""Saving and loading: whole, atomic, and clear about files that are not ours."""

import json
import os

import pytest
import torch
from huggingface_hub import errors as hub_errors
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import identical
from triptych.checkpoint import find, fingerprint, load, save
from triptych.contracts import Source
from triptych.errors import CheckpointError, TriptychError
from triptych.files import replacing


def test_a_space_comes_back_with_weights_recipe_and_words(run, tmp_path):
    space = load(run)
    save(space, tmp_path / "copy.safetensors")
    copy = load(tmp_path / "copy.safetensors")
    assert identical(space, copy)
    assert copy.recipe == space.recipe
    query = Source("text", "two red bells")
    assert torch.equal(space.embed_one(query).embedding, copy.embed_one(query).embedding)
    assert fingerprint(run) == fingerprint(run / "space.safetensors")


def test_the_same_space_gives_the_same_bytes(run, tmp_path):
    space = load(run)
    for number in range(6):
        save(space, tmp_path / f"{number}.safetensors")
    assert len({fingerprint(tmp_path / f"{number}.safetensors") for number in range(6)}) == 1


def test_others_may_read_what_we_write(run):
    mask = os.umask(0)
    os.umask(mask)
    assert (run / "space.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def test_changed_headers_and_weights_are_named(run, tmp_path):
    with safe_open(run / "space.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["triptych"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path = tmp_path / "changed.safetensors"
    words = json.loads(header["files"]["text"]["tokenizer.json"])
    endless = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    pattern = {"text": {"tokenizer.json": json.dumps({**words, "pre_tokenizer": endless})}}
    nan = {**tensors, "space.heads.text.weight": tensors["space.heads.text.weight"] * float("nan")}
    cases = [
        ({**header, "files": {"text": {"tokenizer.json": "no"}}}, tensors, "tokenizer.json cannot be read"),
        (
            {**header, "files": pattern},
            tensors,
            r"changed.safetensors: the saved tokenizer.json splits texts otherwise",
        ),
        ({**header, "files": 3}, tensors, "do not fit together"),
        ({k: v for k, v in header.items() if k != "recipe"}, tensors, "do not fit together"),
        ({**header, "recipe": "name = 3"}, tensors, "the recipe in"),
        (header, dict(list(tensors.items())[1:]), "do not fit together"),
        (header, nan, "heads.text.weight hold NaN"),
        ([], tensors, "not a space saved by triptych"),
    ]
    for changed, weights, message in cases:
        save_file(weights, path, metadata={"triptych": json.dumps(changed)})
        with pytest.raises(TriptychError, match=message):
            load(path)


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


def test_a_file_of_another_version_says_so(run, tmp_path):
    with safe_open(find(run), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        header = json.loads(file.metadata()["triptych"])
    save_file(tensors, tmp_path / "old.safetensors", {"triptych": json.dumps(header | {"form": "space-1"})})
    with pytest.raises(CheckpointError, match=r"saved by another version of triptych \(space-1\)"):
        load(tmp_path / "old.safetensors")


def test_only_a_name_marked_as_such_is_looked_for_on_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked.append(name) or 1 / 0)
    with pytest.raises(CheckpointError, match="runs/typo: no such run folder"):
        load("runs/typo")
    assert not asked, "a mistyped folder went to the network"
    with pytest.raises(CheckpointError, match="hf:openai/clip: cannot be fetched from the Hugging Face hub: division"):
        load("hf:openai/clip")
    assert asked == ["openai/clip"]


def hub_error(name):
    """One of the library's errors, without the answer of the hub that some of them want to be made with."""
    kind = getattr(hub_errors, name)
    return kind.__new__(kind, "Cannot find an appropriate cached snapshot folder for the specified revision.")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error("LocalEntryNotFoundError"), "the Hugging Face hub cannot be reached, and the model has not been"),
        (hub_error("OfflineModeIsEnabled"), "the Hugging Face hub cannot be reached, and the model has not been"),
        (
            hub_error("RepositoryNotFoundError"),
            "has no public model of this name; if it is private",
        ),
        (hub_error("GatedRepoError"), "accept the terms on its page on the hub, then type: hf auth login"),
        (hub_error("HFValidationError"), "not a name of a model on the Hugging Face hub"),
        (ImportError("no huggingface_hub"), r"type: pip install 'triptych\[pretrained\]'"),
        (ValueError("odd\nlines"), r"cannot be fetched from the Hugging Face hub: odd$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_the_hub_did_not_give_is_explained(monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=rf"^hf:some/model: .*{message}") as caught:
        load("hf:some/model")
    assert type(error).__name__ not in str(caught.value)


@pytest.mark.parametrize("zeroed", ["", "heads.image.", "encoders.image."])
def test_weights_that_give_everything_one_embedding_are_refused(run, tmp_path, zeroed):
    space = load(run)
    with torch.no_grad():
        for name, weights in space.named_parameters():
            if name.startswith(zeroed):
                weights.zero_()
    save(space, tmp_path / "space.safetensors")
    with pytest.raises(CheckpointError, match=r"space\.safetensors: gives every image the same embedding.*train"):
        load(tmp_path / "space.safetensors")
