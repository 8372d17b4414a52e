"""The files of a made world really show what its truth says."""

import csv
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.data.label_noise import read_swaps
from triptych.data.synthetic import FACTORS, SyntheticConfig, generate, phrases_for, read_annotations
from triptych.data.synthetic.scenes import choose_held_out
from triptych.errors import UsageError

EASY = SyntheticConfig(scenes=400, seed=5, novel_fraction=0.1)


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds") / "easy"
    generate(EASY, folder)
    return folder, read_annotations(folder)


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds") / "hard"
    generate(
        SyntheticConfig(scenes=60, max_objects=3, difficulty="hard", seconds=3.0, image_size=96, captions=8), folder
    )
    return folder, read_annotations(folder)


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "manifest.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the files


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
        assert (row["id"], row["split"], row["label"]) == (
            scene.id,
            scene.split,
            scene.objects[0].attributes.category,
        )
        assert [row[f"caption_{n}"] for n in range(1, 6)] == [caption.text for caption in scene.captions]


def test_existing_data_is_reused_and_other_folders_raise(tmp_path):
    config, folder = SyntheticConfig(scenes=10), tmp_path / "deep" / "world"
    generate(config, folder)
    stamp = (folder / "images/000000.png").stat().st_mtime_ns
    assert generate(config, folder) == folder / "manifest.csv"
    assert (folder / "images/000000.png").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match="not empty and is no world with these settings"):
        generate(SyntheticConfig(scenes=10, seed=1), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty"):
        generate(config, tmp_path / "mine")
    assert read_all_bytes(tmp_path / "mine") == {"thesis.txt": b"years of work"}
    with pytest.raises(UsageError, match="is a file"):
        generate(config, tmp_path / "mine" / "thesis.txt")
    (tmp_path / "empty").mkdir()
    assert generate(config, tmp_path / "empty").is_file()


def test_interrupted_generation_leaves_no_files(tmp_path):
    calls = []

    def stop_at_seven(done: int, total: int) -> None:
        calls.append((done, total))
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(SyntheticConfig(scenes=40), tmp_path / "world", on_progress=stop_at_seven)
    assert calls == [(n, 40) for n in range(1, 8)]
    assert not list(tmp_path.iterdir())


def test_stale_folders_of_dead_processes_only_are_removed(tmp_path):
    command = [sys.executable, "-m", "triptych", "data", "synthetic", str(tmp_path / "world"), "--scenes", "100000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        part = tmp_path / f".world.{process.pid}.part"
        try:
            deadline = time.monotonic() + 60
            while not any(part.glob("images/*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with pytest.raises(UsageError, match="another process is making a world here; wait until it is done"):
                generate(SyntheticConfig(scenes=10), tmp_path / "world")
            assert any(part.glob("images/*")), "the folder of a live process was removed"
        finally:
            process.kill()
    assert part.is_dir()
    others = tmp_path / ".world.old.1.part"  # of the target world.old, not of this one
    others.mkdir()
    generate(SyntheticConfig(scenes=10), tmp_path / "world")
    assert {path.name for path in tmp_path.iterdir()} == {"world", others.name}
    part.mkdir()  # beside a finished world, too
    generate(SyntheticConfig(scenes=10), tmp_path / "world")
    assert {path.name for path in tmp_path.iterdir()} == {"world", others.name}


# --- words


@pytest.mark.parametrize("fixture_name", ["easy", "hard"])
def test_captions_of_a_scene_differ_and_every_word_is_annotated(fixture_name, request):
    _, scenes = request.getfixturevalue(fixture_name)
    for scene in scenes:
        assert len({caption.text for caption in scene.captions}) == len(scene.captions)
        for caption in scene.captions:
            assert [word.text for word in caption.words] == re.findall(r"[\w-]+", caption.text)
            assert all(caption.text[word.start : word.end] == word.text for word in caption.words)
            assert re.fullmatch(r"[A-Z][\w ,;.-]*\w\.", caption.text)
            assert not re.search(r"[,;.]\s*[,;.]|  | a [aeiou]|\ban [^aeiou]", caption.text), caption.text


def test_words_match_the_factors_of_their_object(easy):
    _, scenes = easy
    counts = Counter()
    for scene in scenes:
        for word in (word for caption in scene.captions for word in caption.words):
            if word.factor in ("colour", "tempo", "height", "side", "timing", "count"):
                (index,) = word.object_indices
                value = str(getattr(scene.objects[index].attributes, word.factor))
                assert word.text.lower() in {w for phrase in phrases_for(word.factor, value) for w in phrase.split()}
                counts[word.factor, value] += 1
    assert all(counts[name, value] for name in ("colour", "tempo", "height") for value in FACTORS[name].values)


def test_words_have_boxes_and_times_only_where_their_factor_shows(easy):
    _, scenes = easy
    for scene in scenes:
        for word in (word for caption in scene.captions for word in caption.words):
            mentioned_objects = [scene.objects[index] for index in word.object_indices]
            is_visible = word.factor in ("category", "count", "height", "colour", "side")
            is_audible = word.factor in ("category", "count", "height", "tempo", "timing")
            assert word.boxes == (tuple(box for each in mentioned_objects for box in each.boxes) if is_visible else ())
            assert word.time_spans == (
                tuple(note for each in mentioned_objects for note in each.notes) if is_audible else ()
            )
            assert bool(word.object_indices) == (word.factor not in (None, "occasion"))


def test_grammar_follows_the_count(easy):
    _, scenes = easy
    for scene in scenes:
        if len(scene.objects) > 1:
            continue
        is_plural = scene.objects[0].attributes.count > 1
        for caption in scene.captions:
            category_words = [word.text for word in caption.words if word.factor == "category"]
            assert any(text.endswith("s") for text in category_words) or any(
                text.endswith("ing") for text in category_words
            )
            if is_plural and not any(text.endswith("ing") for text in category_words):
                assert sum(text.endswith("s") for text in category_words) == 1, caption.text  # bells ring, a bell rings
            assert ("Some" in caption.text or " some " in caption.text) <= is_plural


def test_hard_captions_omit_more_factors(easy, hard):
    def mean_num_factors(scenes) -> float:
        single_object_scenes = [truth for truth in scenes if len(truth.objects) == 1]
        captions = [caption for truth in single_object_scenes for caption in truth.captions]
        return float(
            np.mean([len({word.factor for word in caption.words} - {None, "occasion"}) for caption in captions])
        )

    assert mean_num_factors(hard[1]) + 1 < mean_num_factors(easy[1]) < 7


# --- splits and damage


def test_held_out_combinations_occur_in_the_novel_split_only(easy):
    _, scenes = easy
    assert Counter(scene.split for scene in scenes) == {"train": 280, "valid": 20, "test": 60, "novel": 40}
    held_out = EASY.held_out_combinations
    assert len(held_out.colours) == 5
    assert len(held_out.heights) == 2
    for truth in scenes:
        is_held_out = [
            (each.attributes.category, each.attributes.colour) in held_out.colours
            or (each.attributes.category, each.attributes.height) in held_out.heights
            for each in truth.objects
        ]
        assert any(is_held_out) == (truth.split == "novel")
    train_objects = [each.attributes for scene in scenes if scene.split == "train" for each in scene.objects]
    for name in ("category", "colour", "height", "side", "tempo", "timing"):
        assert {getattr(actor, name) for actor in train_objects} == set(FACTORS[name].values)


@pytest.mark.parametrize("num_categories", range(2, 9))
def test_holding_out_half_leaves_every_category_and_value(num_categories):
    names = FACTORS["category"].values[:num_categories]
    for seed in range(20):
        held_out = choose_held_out(names, 0.5, np.random.default_rng(seed))
        for values, pairs in (
            (FACTORS["colour"].values, held_out.colours),
            (FACTORS["height"].values, held_out.heights),
        ):
            remaining = {(name, value) for name in names for value in values} - set(pairs)
            assert len(pairs) == round(0.5 * num_categories * len(values))
            assert {name for name, _ in remaining} == set(names)
            assert {value for _, value in remaining} == set(values)


def test_objects_of_a_scene_differ_in_category_side_and_timing(hard):
    _, scenes = hard
    assert {len(scene.objects) for scene in scenes} == {1, 2, 3}
    for truth in scenes:
        attributes = [each.attributes for each in truth.objects]
        for name in ("category", "side", "timing"):
            assert len({getattr(actor, name) for actor in attributes}) == len(attributes)
        assert [each.time_span for each in truth.objects] == sorted(each.time_span for each in truth.objects)


@pytest.mark.parametrize("noise_kind", ["random", "category"])
def test_noise_is_exact_listed_and_in_train_only(tmp_path, noise_kind):
    config = SyntheticConfig(scenes=80, noise_rate=0.3, noise_kind=noise_kind)
    folder = generate(config, tmp_path / "world").parent
    scenes = {truth.id: truth for truth in read_annotations(folder)}
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
    assert json.loads((easy[0] / "synthetic.json").read_text())["splits"] == EASY.split_counts


# --- settings


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


def test_read_annotations_of_another_folder_raises(tmp_path):
    with pytest.raises(UsageError, match="give the folder of a made world"):
        read_annotations(tmp_path)


def test_captions_differ_at_the_highest_omission_rate(tmp_path):
    folder = generate(
        SyntheticConfig(scenes=10, max_objects=1, omission_rate=1.0, captions=20), tmp_path / "world"
    ).parent
    assert all(len({caption.text for caption in truth.captions}) == 20 for truth in read_annotations(folder))
