"""The generated folder: files, manifest, noise, reuse and interruption; checks of the configuration."""

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from tests.data.synthetic.conftest import CONFIGS
from triptych.data.label_noise import read_swaps
from triptych.data.synthetic import SyntheticConfig, generate, read_annotations
from triptych.errors import UsageError


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "manifest.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_config_gives_the_same_bytes(tmp_path):
    config = SyntheticConfig(scenes=30, noise_rate=0.4)
    first, second = (read_all_bytes(generate(config, tmp_path / str(n)).parent) for n in (1, 3))
    assert first == second
    assert len(first) == 2 * 30 + 4


def test_another_seed_gives_other_files(tmp_path):
    one, other = (
        read_all_bytes(generate(SyntheticConfig(scenes=12, seed=seed), tmp_path / str(seed)).parent) for seed in (0, 1)
    )
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name] == other[name]]


def test_image_size_and_audio_duration_follow_the_config(easy, hard):
    for (folder, scenes), size, seconds in ((easy, 64, 2), (hard, 96, 3)):
        with Image.open(folder / f"images/{scenes[0].id}.png") as image:
            assert (image.size, image.mode) == ((size, size), "RGB")
        info = soundfile.info(folder / f"audio/{scenes[0].id}.wav")
        assert (info.samplerate, info.channels, info.subtype, info.frames) == (16_000, 1, "PCM_16", seconds * 16_000)


def test_manifest_lists_existing_files_and_annotated_captions(easy):
    folder, scenes = easy
    rows = read_rows(folder)
    assert list(rows[0]) == ["id", "image", "audio", *(f"caption_{n}" for n in range(1, 6)), "split", "label"]
    for row, scene in zip(rows, scenes, strict=True):
        assert (folder / row["image"]).is_file()
        assert (folder / row["audio"]).is_file()
        assert (row["id"], row["split"], row["label"]) == (scene.id, scene.split, scene.objects[0].attributes.category)
        assert [row[f"caption_{n}"] for n in range(1, 6)] == [caption.text for caption in scene.captions]


def test_existing_data_is_reused_and_other_folders_raise(tmp_path):
    config, folder = SyntheticConfig(scenes=10), tmp_path / "deep" / "data"
    generate(config, folder)
    stamp = (folder / "images/000000.png").stat().st_mtime_ns
    assert generate(config, folder) == folder / "manifest.csv"
    assert (folder / "images/000000.png").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match="not empty and has no synthetic data of this configuration"):
        generate(SyntheticConfig(scenes=10, seed=1), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("my notes")
    with pytest.raises(UsageError, match="not empty"):
        generate(config, tmp_path / "mine")
    assert read_all_bytes(tmp_path / "mine") == {"notes.txt": b"my notes"}
    with pytest.raises(UsageError, match="is a file"):
        generate(config, tmp_path / "mine" / "notes.txt")
    (tmp_path / "empty").mkdir()
    assert generate(config, tmp_path / "empty").is_file()


def test_interrupted_generation_leaves_no_files(tmp_path):
    calls = []

    def stop_at_seven(num_scenes: int) -> None:
        calls.append(num_scenes)
        if len(calls) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(SyntheticConfig(scenes=40), tmp_path / "data", on_scene=stop_at_seven)
    assert calls == [1] * 7
    assert not list(tmp_path.iterdir())


def test_stale_folders_of_dead_processes_only_are_removed(tmp_path):
    command = [sys.executable, "-m", "triptych", "data", "synthetic", str(tmp_path / "data"), "--scenes", "100000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        part = tmp_path / f".data.{process.pid}.part"
        try:
            deadline = time.monotonic() + 60
            while not any(part.glob("images/*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with pytest.raises(UsageError, match="another process is generating data here; wait until it is done"):
                generate(SyntheticConfig(scenes=10), tmp_path / "data")
            assert any(part.glob("images/*")), "the folder of a live process was removed"
        finally:
            process.kill()
    assert part.is_dir()
    others = tmp_path / ".data.old.1.part"  # of the target data.old, not of this one
    others.mkdir()
    generate(SyntheticConfig(scenes=10), tmp_path / "data")
    assert {path.name for path in tmp_path.iterdir()} == {"data", others.name}
    part.mkdir()  # also beside finished data
    generate(SyntheticConfig(scenes=10), tmp_path / "data")
    assert {path.name for path in tmp_path.iterdir()} == {"data", others.name}


@pytest.mark.parametrize("noise_kind", ["random", "category"])
def test_noise_is_exact_listed_and_in_train_only(tmp_path, noise_kind):
    config = SyntheticConfig(scenes=80, noise_rate=0.3, noise_kind=noise_kind)
    folder = generate(config, tmp_path / "data").parent
    scenes = {scene.id: scene for scene in read_annotations(folder)}
    swaps = {swap.id: swap for swap in read_swaps(folder / "swaps.csv")}
    assert len(swaps) == round(0.3 * config.split_counts["train"])
    for row in read_rows(folder):
        owner = swaps[row["id"]].taken_from if row["id"] in swaps else row["id"]
        assert [row[f"caption_{n}"] for n in range(1, 6)] == [caption.text for caption in scenes[owner].captions]
        assert row["image"] == f"images/{row['id']}.png"
    for item in swaps.values():
        assert scenes[item.id].split == scenes[item.taken_from].split == "train"
        assert item.id != item.taken_from
        assert item.modality == "text"
        assert noise_kind == "random" or scenes[item.id].label == scenes[item.taken_from].label


def test_data_without_noise_has_no_list_of_swaps(easy):
    assert not (easy[0] / "swaps.csv").exists()
    assert json.loads((easy[0] / "synthetic.json").read_text())["splits"] == CONFIGS["easy"].split_counts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenes": 3}, "scenes is 3; allowed: a whole number from 10 to 999999"),
        ({"scenes": 30.5}, "scenes is 30.5; allowed: a whole number"),
        ({"seed": -1}, "seed is -1"),
        ({"max_objects": 4}, "max_objects is 4; allowed: a whole number from 1 to 3"),
        ({"max_objects": True}, "max_objects is True"),
        ({"num_categories": 2, "max_objects": 3}, "num_categories is 2 and max_objects is 3"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": "2"}, "seconds is '2'; allowed: a number from 1 to 60"),
        ({"jitter": 1.5}, "jitter is 1.5; allowed: a number from 0 to 1"),
        ({"noise_rate": -0.1}, "noise_rate is -0.1"),
        ({"difficulty": "meduim"}, "difficulty 'meduim' is unknown; known: easy, hard, medium; did you mean 'medium'?"),
        ({"noise_kind": "all"}, "noise kind 'all' is unknown"),
        ({"noise_modality": "video"}, "noise modality 'video' is unknown"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, "leave no scene for train"),
        ({"held_out_fraction": 0.0}, "holds no combination out; raise held_out_fraction, or set novel_fraction to 0"),
    ],
)
def test_invalid_config_raises_with_value_and_range(settings, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        SyntheticConfig(**settings)


def test_single_settings_override_the_difficulty():
    settings = SyntheticConfig(difficulty="hard", jitter=0.0).difficulty_settings
    assert (settings.jitter, settings.omission_rate) == (
        0.0,
        SyntheticConfig(difficulty="hard").difficulty_settings.omission_rate,
    )


def test_no_novel_split_needs_no_held_out_combination():
    config = SyntheticConfig(scenes=20, held_out_fraction=0.0, novel_fraction=0.0)
    assert config.split_counts == {"train": 16, "valid": 1, "test": 3, "novel": 0}
