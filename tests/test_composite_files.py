"""The names and files of composite spaces: loading, fingerprints, members that changed, damaged files."""

import shutil

import pytest
import torch

import triptych
from triptych.bridge import Bridge
from triptych.checkpoint import compute_fingerprint, resolve_path
from triptych.composite_files import CompositeSpec, find_composite
from triptych.errors import CheckpointError
from triptych.spaces.presence import BRIDGE_FILE, split_names

TEXT = "a red square"


@pytest.fixture
def names(image_text_run, audio_text_run, tmp_path):
    """Two runs that the test may change."""
    folders = [tmp_path / "photos", tmp_path / "sounds"]
    for source, folder in zip((image_text_run, audio_text_run), folders, strict=True):
        folder.mkdir()
        shutil.copy(source / "space.safetensors", folder)
    return tuple(map(str, folders))


@pytest.fixture
def bridge_folder(names, tmp_path):
    bridge = Bridge(torch.randn(32, 24), torch.randn(24, 32), torch.zeros(32), torch.zeros(24))
    tensors = dict(bridge.state_dict()) | {"score_mean": torch.zeros(3), "score_std": torch.ones(3)}
    fingerprints = tuple(map(compute_fingerprint, names))
    CompositeSpec(names, None, fingerprints, tensors, {"num_texts": 7}).save(tmp_path / "bridge")
    return tmp_path / "bridge"


def test_a_sum_of_names_loads_in_any_folder(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = triptych.load("photos+sounds")
    monkeypatch.chdir("/")
    again = triptych.load(str(space.name_or_path))
    assert torch.equal(space.encode(TEXT, convert_to_tensor=True), again.encode(TEXT, convert_to_tensor=True))
    assert compute_fingerprint(str(space.name_or_path)) == compute_fingerprint("+".join(names))
    assert compute_fingerprint("+".join(reversed(names))) != compute_fingerprint("+".join(names))
    assert resolve_path("+".join(names)).parent.name == "photos"


def test_a_bridge_folder_loads(bridge_folder, tmp_path, monkeypatch):
    space = triptych.load(bridge_folder)
    assert space.recipe.space.embed_dim == 2 * (32 + 24) + 2
    assert space.history == {"bridge": {"num_texts": 7}}
    monkeypatch.chdir("/")
    assert compute_fingerprint(str(space.name_or_path)) == compute_fingerprint(bridge_folder)
    assert resolve_path(bridge_folder) == bridge_folder
    assert triptych.load(bridge_folder / BRIDGE_FILE).name_or_path == space.name_or_path == str(bridge_folder)


def test_an_existing_path_with_a_plus_sign_is_a_path(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(names[0], tmp_path / "dogs+cats")
    assert find_composite("dogs+cats") is None
    assert triptych.load("dogs+cats").modalities == ("image", "text")
    assert split_names("dogs+cats+sounds") == ("dogs+cats", "sounds")
    assert split_names("sounds+hf:dogs+cats?dtype=bfloat16") == ("sounds", "hf:dogs+cats?dtype=bfloat16")
    assert split_names("hf:dogs+cats?truncate_dim=4+sounds") == ("hf:dogs+cats?truncate_dim=4", "sounds")
    assert split_names("dogs+cats + sounds") == ("dogs+cats", "sounds")
    assert split_names("hf:a/b+st:c/d+missing") == ("hf:a/b", "st:c/d", "missing")
    assert triptych.load("dogs+cats+sounds").modalities == ("image", "audio", "text")


def test_a_member_that_changed_is_reported(bridge_folder, names):
    space_file = f"{names[0]}/space.safetensors"
    shutil.copy(f"{names[1]}/space.safetensors", space_file)
    with pytest.raises(CheckpointError, match="photos has changed since the bridge was fitted; run `triptych bridge`"):
        triptych.load(bridge_folder)
    shutil.rmtree(names[1])
    with pytest.raises(CheckpointError, match="sounds: no such run folder"):
        triptych.load(bridge_folder)


@pytest.mark.parametrize(
    ("name", "message"), [("missing+{}", "missing: no such run folder"), ("{}+", "a name is empty")]
)
def test_a_name_that_does_not_exist_is_reported(names, name, message):
    with pytest.raises(CheckpointError, match=message):
        triptych.load(name.format(names[0]))


def test_damaged_files_are_reported(bridge_folder, names):
    content = (bridge_folder / BRIDGE_FILE).read_bytes()
    (bridge_folder / BRIDGE_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="cannot be read as a bridge"):
        triptych.load(bridge_folder)
    fingerprints = tuple(map(compute_fingerprint, names))
    for tensors in ({"map_ab": torch.zeros(32, 24)}, {n: torch.full((2, 2), torch.nan) for n in ("map_ab", "map_ba")}):
        CompositeSpec(names, None, fingerprints, tensors).save(bridge_folder)
        with pytest.raises(CheckpointError, match="the bridge is damaged"):
            triptych.load(bridge_folder)
    CompositeSpec(names[:1], None, fingerprints[:1]).save(bridge_folder)
    with pytest.raises(CheckpointError, match="names 1 members; need two or more"):
        triptych.load(bridge_folder)


GOOD_TENSORS = {
    "map_ab": torch.ones(32, 24),
    "map_ba": torch.ones(24, 32),
    "centre_a": torch.zeros(32),
    "centre_b": torch.zeros(24),
    "score_mean": torch.zeros(3),
    "score_std": torch.ones(3),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"score_std": None},
        {"score_mean": None},
        {"score_mean": torch.zeros(5)},
        {"score_std": torch.ones(())},
        {"score_std": torch.zeros(3)},
        {"map_ab": torch.ones(32, 24, dtype=torch.float64)},
        {"map_ba": torch.ones(24, 32, dtype=torch.int64)},
        {"map_ab": torch.ones(5, 6), "map_ba": torch.ones(6, 5), "centre_a": torch.ones(5), "centre_b": torch.ones(6)},
        {"other": torch.ones(2)},
    ],
)
def test_edited_tensors_are_reported_before_anything_is_embedded(bridge_folder, names, changes):
    tensors = {name: x for name, x in (GOOD_TENSORS | changes).items() if x is not None}
    CompositeSpec(names, None, tuple(map(compute_fingerprint, names)), tensors).save(bridge_folder)
    with pytest.raises(CheckpointError, match=r"bridge: the bridge is damaged \(.*; run `triptych bridge` again"):
        triptych.load(bridge_folder)


@pytest.mark.parametrize("member", ["{bridge}", "{bridge}/bridge.safetensors", "{first}+{bridge}"])
def test_a_bridge_cannot_contain_itself(bridge_folder, names, member):
    members = member.format(bridge=bridge_folder, first=names[0]), names[1]
    CompositeSpec(members, None, ("", ""), GOOD_TENSORS).save(bridge_folder)
    with pytest.raises(CheckpointError, match=r"bridge\.safetensors: the member .* is a composite space"):
        triptych.load(bridge_folder)
