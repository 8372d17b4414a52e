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

from triptych.data.noise import read_swaps
from triptych.data.world import FACTORS, World, make, phrases, read_truth
from triptych.data.world.scenes import hold_out
from triptych.errors import UsageError

EASY = World(scenes=400, seed=5, novel=0.1)


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds") / "easy"
    make(EASY, folder)
    return folder, read_truth(folder)


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds") / "hard"
    make(World(scenes=60, actors=3, difficulty="hard", seconds=3.0, size=96, captions=8), folder)
    return folder, read_truth(folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "manifest.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the files


def test_same_settings_give_the_same_bytes(tmp_path):
    world = World(scenes=30, noise=0.4)
    first, second = (content(make(world, tmp_path / str(n)).parent) for n in (1, 3))
    assert first == second
    assert len(first) == 2 * 30 + 4


def test_another_seed_gives_another_world(tmp_path):
    one, other = (content(make(World(scenes=12, seed=seed), tmp_path / str(seed)).parent) for seed in (0, 1))
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name] == other[name]]


def test_files_are_as_large_and_as_long_as_asked(easy, hard):
    for (folder, truths), size, seconds in ((easy, 64, 2), (hard, 96, 3)):
        with Image.open(folder / f"images/{truths[0].id}.png") as picture:
            assert (picture.size, picture.mode) == ((size, size), "RGB")
        info = soundfile.info(folder / f"sounds/{truths[0].id}.wav")
        assert (info.samplerate, info.channels, info.subtype, info.frames) == (16_000, 1, "PCM_16", seconds * 16_000)


def test_the_manifest_names_real_files_and_the_true_captions(easy):
    folder, truths = easy
    rows = rows_of(folder)
    assert list(rows[0]) == ["id", "image", "audio", *(f"caption_{n}" for n in range(1, 6)), "split", "label"]
    for row, truth in zip(rows, truths, strict=True):
        assert (folder / row["image"]).is_file()
        assert (folder / row["audio"]).is_file()
        assert (row["id"], row["split"], row["label"]) == (truth.id, truth.split, truth.performers[0].actor.thing)
        assert [row[f"caption_{n}"] for n in range(1, 6)] == [caption.text for caption in truth.captions]


def test_an_earlier_world_is_kept_and_anything_else_is_refused(tmp_path):
    world, folder = World(scenes=10), tmp_path / "deep" / "world"
    make(world, folder)
    stamp = (folder / "images/000000.png").stat().st_mtime_ns
    assert make(world, folder) == folder / "manifest.csv"
    assert (folder / "images/000000.png").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match="not empty and is no world with these settings"):
        make(World(scenes=10, seed=1), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty"):
        make(world, tmp_path / "mine")
    assert content(tmp_path / "mine") == {"thesis.txt": b"years of work"}
    with pytest.raises(UsageError, match="is a file"):
        make(world, tmp_path / "mine" / "thesis.txt")
    (tmp_path / "empty").mkdir()
    assert make(world, tmp_path / "empty").is_file()


def test_an_interrupted_world_leaves_nothing(tmp_path):
    told = []

    def stop_at_seven(done: int, total: int) -> None:
        told.append((done, total))
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(World(scenes=40), tmp_path / "world", progress=stop_at_seven)
    assert told == [(n, 40) for n in range(1, 8)]
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_world_are_removed_and_those_of_a_live_one_are_not(tmp_path):
    command = [sys.executable, "-m", "triptych", "world", str(tmp_path / "world"), "--scenes", "100000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        part = tmp_path / f".world.{process.pid}.part"
        try:
            deadline = time.monotonic() + 60
            while not any(part.glob("images/*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with pytest.raises(UsageError, match="another process is making a world here; wait until it is done"):
                make(World(scenes=10), tmp_path / "world")
            assert any(part.glob("images/*")), "the folder of a live process was removed"
        finally:
            process.kill()
    assert part.is_dir()
    others = tmp_path / ".world.old.1.part"  # of the target world.old, not of this one
    others.mkdir()
    make(World(scenes=10), tmp_path / "world")
    assert {path.name for path in tmp_path.iterdir()} == {"world", others.name}
    part.mkdir()  # beside a finished world, too
    make(World(scenes=10), tmp_path / "world")
    assert {path.name for path in tmp_path.iterdir()} == {"world", others.name}


# --- words


@pytest.mark.parametrize("world", ["easy", "hard"])
def test_captions_of_a_scene_differ_and_every_word_is_accounted_for(world, request):
    _, truths = request.getfixturevalue(world)
    for truth in truths:
        assert len({caption.text for caption in truth.captions}) == len(truth.captions)
        for caption in truth.captions:
            assert [word.text for word in caption.words] == re.findall(r"[\w-]+", caption.text)
            assert all(caption.text[word.start : word.end] == word.text for word in caption.words)
            assert re.fullmatch(r"[A-Z][\w ,;.-]*\w\.", caption.text)
            assert not re.search(r"[,;.]\s*[,;.]|  | a [aeiou]|\ban [^aeiou]", caption.text), caption.text


def test_words_say_what_is_true_of_their_actor(easy):
    _, truths = easy
    said = Counter()
    for truth in truths:
        for word in (word for caption in truth.captions for word in caption.words):
            if word.factor in ("colour", "rhythm", "height", "side", "moment", "count"):
                (place,) = word.actors
                value = str(getattr(truth.performers[place].actor, word.factor))
                assert word.text.lower() in {w for phrase in phrases(word.factor, value) for w in phrase.split()}
                said[word.factor, value] += 1
    assert all(said[name, value] for name in ("colour", "rhythm", "height") for value in FACTORS[name].values)


def test_words_point_only_where_their_factor_shows(easy):
    _, truths = easy
    for truth in truths:
        for word in (word for caption in truth.captions for word in caption.words):
            meant = [truth.performers[place] for place in word.actors]
            seen = word.factor in ("thing", "count", "height", "colour", "side")
            audible = word.factor in ("thing", "count", "height", "rhythm", "moment")
            assert word.boxes == (tuple(box for each in meant for box in each.boxes) if seen else ())
            assert word.times == (tuple(note for each in meant for note in each.notes) if audible else ())
            assert bool(word.actors) == (word.factor not in (None, "occasion"))


def test_grammar_follows_the_count(easy):
    _, truths = easy
    for truth in truths:
        if len(truth.performers) > 1:
            continue
        several = truth.performers[0].actor.count > 1
        for caption in truth.captions:
            things = [word.text for word in caption.words if word.factor == "thing"]
            assert any(text.endswith("s") for text in things) or any(text.endswith("ing") for text in things)
            if several and not any(text.endswith("ing") for text in things):
                assert sum(text.endswith("s") for text in things) == 1, caption.text  # bells ring, a bell rings
            assert ("Some" in caption.text or " some " in caption.text) <= several


def test_hard_captions_leave_more_out(easy, hard):
    def share(truths) -> float:
        singles = [truth for truth in truths if len(truth.performers) == 1]
        captions = [caption for truth in singles for caption in truth.captions]
        return float(
            np.mean([len({word.factor for word in caption.words} - {None, "occasion"}) for caption in captions])
        )

    assert share(hard[1]) + 1 < share(easy[1]) < 7


# --- splits and damage


def test_held_out_combinations_occur_in_the_novel_split_only(easy):
    _, truths = easy
    assert Counter(truth.split for truth in truths) == {"train": 280, "valid": 20, "test": 60, "novel": 40}
    held_out = EASY.held_out_combinations
    assert len(held_out.colours) == 5
    assert len(held_out.heights) == 2
    for truth in truths:
        found = [
            (each.actor.thing, each.actor.colour) in held_out.colours
            or (each.actor.thing, each.actor.height) in held_out.heights
            for each in truth.performers
        ]
        assert any(found) == (truth.split == "novel")
    trained = [each.actor for truth in truths if truth.split == "train" for each in truth.performers]
    for name in ("thing", "colour", "height", "side", "rhythm", "moment"):
        assert {getattr(actor, name) for actor in trained} == set(FACTORS[name].values)


@pytest.mark.parametrize("things", range(2, 9))
def test_holding_out_half_still_leaves_every_thing_and_value(things):
    names = FACTORS["thing"].values[:things]
    for seed in range(20):
        held_out = hold_out(names, 0.5, np.random.default_rng(seed))
        for values, pairs in (
            (FACTORS["colour"].values, held_out.colours),
            (FACTORS["height"].values, held_out.heights),
        ):
            kept = {(name, value) for name in names for value in values} - set(pairs)
            assert len(pairs) == round(0.5 * things * len(values))
            assert {name for name, _ in kept} == set(names)
            assert {value for _, value in kept} == set(values)


def test_actors_of_a_scene_share_neither_thing_nor_side_nor_moment(hard):
    _, truths = hard
    assert {len(truth.performers) for truth in truths} == {1, 2, 3}
    for truth in truths:
        actors = [each.actor for each in truth.performers]
        for name in ("thing", "side", "moment"):
            assert len({getattr(actor, name) for actor in actors}) == len(actors)
        assert [each.time for each in truth.performers] == sorted(each.time for each in truth.performers)


@pytest.mark.parametrize("kind", ["random", "category"])
def test_damage_is_exact_and_listed_and_touches_train_only(tmp_path, kind):
    world = World(scenes=80, noise=0.3, noise_kind=kind)
    folder = make(world, tmp_path / "world").parent
    truths = {truth.id: truth for truth in read_truth(folder)}
    swaps = {item.id: item for item in read_swaps(folder / "swaps.csv")}
    assert len(swaps) == round(0.3 * world.split_counts["train"])
    for row in rows_of(folder):
        owner = swaps[row["id"]].taken_from if row["id"] in swaps else row["id"]
        assert [row[f"caption_{n}"] for n in range(1, 6)] == [caption.text for caption in truths[owner].captions]
        assert row["image"] == f"images/{row['id']}.png"
    for item in swaps.values():
        assert truths[item.id].split == truths[item.taken_from].split == "train"
        assert item.id != item.taken_from
        assert item.modality == "text"
        assert kind == "random" or truths[item.id].label == truths[item.taken_from].label


def test_an_undamaged_world_has_no_list_of_swaps(easy):
    assert not (easy[0] / "swaps.csv").exists()
    assert json.loads((easy[0] / "world.json").read_text())["splits"] == EASY.split_counts


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenes": 3}, "scenes is 3; allowed: a whole number from 10 to 999999"),
        ({"scenes": 30.5}, "scenes is 30.5; allowed: a whole number"),
        ({"seed": -1}, "seed is -1"),
        ({"actors": 4}, "actors is 4; allowed: a whole number from 1 to 3"),
        ({"actors": True}, "actors is True"),
        ({"things": 2, "actors": 3}, "things is 2 and actors is 3"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": "2"}, "seconds is '2'; allowed: a number from 1 to 60"),
        ({"jitter": 1.5}, "jitter is 1.5; allowed: a number from 0 to 1"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"difficulty": "meduim"}, "difficulty 'meduim' is unknown; known: easy, hard, medium; did you mean 'medium'?"),
        ({"noise_kind": "all"}, "noise kind 'all' is unknown"),
        ({"noise_modality": "video"}, "noise modality 'video' is unknown"),
        ({"valid": 0.5, "test": 0.5}, "leave no scene for train"),
        ({"held_out": 0.0}, "holds no combination out; raise held_out, or set novel to 0"),
    ],
)
def test_wrong_settings_say_what_was_found_and_what_is_allowed(settings, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        World(**settings)


def test_single_knobs_override_the_difficulty():
    knobs = World(difficulty="hard", jitter=0.0).knobs
    assert (knobs.jitter, knobs.vagueness) == (0.0, World(difficulty="hard").knobs.vagueness)


def test_a_world_without_a_novel_split_needs_no_held_out_combination():
    world = World(scenes=20, held_out=0.0, novel=0.0)
    assert world.split_counts == {"train": 16, "valid": 1, "test": 3, "novel": 0}


def test_other_folders_have_no_truth(tmp_path):
    with pytest.raises(UsageError, match="give the folder of a made world"):
        read_truth(tmp_path)


def test_vague_worlds_still_tell_each_scene_in_different_words(tmp_path):
    folder = make(World(scenes=10, actors=1, vagueness=1.0, captions=20), tmp_path / "world").parent
    assert all(len({caption.text for caption in truth.captions}) == 20 for truth in read_truth(folder))
