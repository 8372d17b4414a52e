"""Captions read aloud by the real programs, where they are installed."""

import shutil
import wave

import numpy as np
import pytest

from tests.data.manifest_files import save
from tests.data.source_copies import COPIES, WAV, picture, put
from triptych.data import manifest, speech
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert
from triptych.errors import ManifestError, UsageError

CAPTIONS = ["a dog barks", "-h --version", "; rm -rf $(pwd) `id`", "caf\u00e9 \u201cquoted\u201d", "-"]


@pytest.fixture(params=speech.PROGRAMS)
def program(request) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def captions(tmp_path):
    """A manifest of pictures with strange captions."""
    put(tmp_path / "a.png", picture())
    put(tmp_path / "b.png", picture(9))
    rows = [
        {"id": "a", "image": "a.png", "text": CAPTIONS, "split": "train", "label": "x"},
        {"id": "b", "image": "b.png", "text": ["a dog barks"], "group": "g", "split": "test"},
        {"id": "c", "image": "b.png", "group": "g", "split": "test"},
    ]
    return save(tmp_path / "pairs.jsonl", rows)


def loudness(path) -> float:
    with wave.open(str(path), "rb") as file:
        return float(np.abs(np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)).max())


def test_every_caption_gets_its_own_speech(program, captions, tmp_path):
    made, _ = speech.speak(captions, tmp_path / "spoken.csv", program, workers=3, show=False)
    found = manifest.read(made.path)
    assert found.problems == ()
    assert [row.texts[0] for row in found.rows] == [*CAPTIONS[:4], "a dog barks"]
    assert {row.group for row in found.rows} == {"(row-1)", "g"}
    assert [(row.image.name if row.image else None, row.split, row.label) for row in found.rows][-1] == (
        "b.png",
        "test",
        None,
    )
    assert all(row.audio and loudness(row.audio) > 1000 for row in found.rows)
    assert len({row.audio for row in found.rows}) == 5  # two pictures with the same words have a file each
    left_out = {"captions that are too long or have nothing to say": 1, "rows without captions": 1}
    assert made.summary["left_out"] == left_out
    # an option would have been obeyed, and nothing said
    flag = next(row for row in found.rows if row.texts[0].startswith("-h"))
    assert flag.audio
    assert flag.audio.stat().st_size > 10_000
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".png") == ["a.png", "b.png"]


def test_an_interrupted_run_goes_on_and_ends_in_the_same_bytes(program, captions, tmp_path):
    made, _ = speech.speak(captions, tmp_path / "spoken.csv", program, show=False)
    room = tmp_path / "spoken_speech"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in room.iterdir()}
    table = made.path.read_bytes()
    gone = sorted(room.iterdir())[0]
    gone.write_bytes(b"")  # as a crash may leave it
    put(room / f".{gone.name}.1234.part", "half")
    speech.speak(captions, tmp_path / "spoken.csv", program, show=False)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in room.iterdir()}
    assert made.path.read_bytes() == table
    assert {name for name in after if after[name][1] != before[name][1]} == {gone.name}
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in before.items()
    }


def test_voices_differ_and_only_known_ones_are_taken(program, tmp_path):
    COPIES["gcompris"](tmp_path)
    source, _ = convert("gcompris", SOURCES["gcompris"], tmp_path, show=False)
    made, _ = speech.speak(source.path, tmp_path / "spoken.csv", program, show=False)
    assert made.summary["licence"] == SOURCES["gcompris"].licence
    one, _ = speech.speak(source.path, tmp_path / "one.csv", program, speech.PROGRAMS[program].usual[:1], show=False)
    sizes = [{row.id: row.audio.stat().st_size for row in manifest.read(m.path).rows if row.audio} for m in (made, one)]
    assert sizes[0].keys() == sizes[1].keys()
    assert sizes[0] != sizes[1]
    for strange in ("nosuch", "en-us+nosuch", "-h"):
        with pytest.raises(UsageError, match="has no voice"):
            speech.speak(source.path, tmp_path / "two.csv", program, [strange], show=False)


def test_what_is_said_where_nothing_can_be_spoken(captions, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install espeak-ng"):
        speech.speak(captions, tmp_path / "spoken.csv", show=False)
    with pytest.raises(UsageError, match="speech program 'say' is unknown"):
        speech.speak(captions, tmp_path / "spoken.csv", "say", show=False)


def test_a_program_that_fails_is_told_and_its_captions_are_left_out(captions, tmp_path, monkeypatch):
    sound = put(tmp_path / "sound.wav", WAV)
    script = f"""#!/bin/sh
case "$1 $4" in
  -lv*) echo 'Voices available: slt' ;;
  *dog*) echo broken >&2; exit 3 ;;
  *) cp '{sound}' "$6" ;;
esac
"""
    broken = put(tmp_path / "bin/flite", script)
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    made, draft = speech.speak(captions, tmp_path / "spoken.csv", "flite", show=False)
    assert made.summary["left_out"]["captions the program could not speak"] == 2
    assert draft.notes == ["first failure: 'a dog barks' with voice slt: broken"]
    assert manifest.read(made.path).counts.pairs["audio-text"] == 3
    put(broken, script.replace("*dog*", "*"))
    with pytest.raises(ManifestError, match=r"no row is left to write .* broken"):
        speech.speak(captions, tmp_path / "none.csv", "flite", show=False)


def test_the_manifest_that_is_read_is_never_replaced(tmp_path):
    COPIES["gcompris"](tmp_path)
    source, _ = convert("gcompris", SOURCES["gcompris"], tmp_path, show=False)
    before = source.path.read_bytes()
    with pytest.raises(UsageError, match="choose another name"):
        speech.speak(source.path, source.path, show=False)
    assert source.path.read_bytes() == before


def test_only_so_many_captions_of_each_row(program, captions, tmp_path):
    made, _ = speech.speak(captions, tmp_path / "spoken.csv", program, each=1, show=False)
    assert [row.texts[0] for row in manifest.read(made.path).rows] == [CAPTIONS[0], "a dog barks"]
    with pytest.raises(UsageError, match="--each -1"):
        speech.speak(captions, tmp_path / "none.csv", program, each=-1, show=False)
