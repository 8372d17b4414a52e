"""Speech synthesis with the real programs, if they are installed."""

import shutil
import wave

import numpy as np
import pytest

from tests.data.dataset_replicas import REPLICAS, WAV, png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.data import manifest, speech_synthesis
from triptych.data.datasets import DATASETS
from triptych.data.datasets.convert import convert
from triptych.errors import ManifestError, UsageError

CAPTIONS = ["a dog barks", "-h --version", "; rm -rf $(pwd) `id`", "caf\u00e9 \u201cquoted\u201d", "-"]


@pytest.fixture(params=speech_synthesis.PROGRAMS)
def program(request) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def captions(tmp_path):
    """A manifest of images with unusual captions."""
    write_file(tmp_path / "a.png", png_bytes())
    write_file(tmp_path / "b.png", png_bytes(9))
    rows = [
        {"id": "a", "image": "a.png", "text": CAPTIONS, "split": "train", "label": "x"},
        {"id": "b", "image": "b.png", "text": ["a dog barks"], "group": "g", "split": "test"},
        {"id": "c", "image": "b.png", "group": "g", "split": "test"},
    ]
    return write_manifest(tmp_path / "pairs.jsonl", rows)


def loudness(path) -> float:
    with wave.open(str(path), "rb") as file:
        return float(np.abs(np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(float)).max())


def test_every_caption_gets_a_speech_file(program, captions, tmp_path):
    written, _ = speech_synthesis.synthesise_speech(
        captions, tmp_path / "spoken.csv", program, workers=3, show_progress=False
    )
    table = manifest.read(written.path)
    assert table.problems == ()
    assert [row.texts[0] for row in table.rows] == [*CAPTIONS[:4], "a dog barks"]
    assert {row.group for row in table.rows} == {"(row-1)", "g"}
    assert [(row.image.name if row.image else None, row.split, row.label) for row in table.rows][-1] == (
        "b.png",
        "test",
        None,
    )
    assert all(row.audio and loudness(row.audio) > 1000 for row in table.rows)
    assert len({row.audio for row in table.rows}) == 5  # two images with the same caption have separate files
    skip_counts = {"captions that are too long or have no letters or digits": 1, "rows without captions": 1}
    assert written.summary["skipped"] == skip_counts
    # interpreted as an option, the caption would give no audio
    flag = next(row for row in table.rows if row.texts[0].startswith("-h"))
    assert flag.audio
    assert flag.audio.stat().st_size > 10_000
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".png") == ["a.png", "b.png"]


def test_an_interrupted_run_resumes_to_the_same_bytes(program, captions, tmp_path):
    written, _ = speech_synthesis.synthesise_speech(captions, tmp_path / "spoken.csv", program, show_progress=False)
    speech_folder = tmp_path / "spoken_speech"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in speech_folder.iterdir()}
    table = written.path.read_bytes()
    truncated_file = sorted(speech_folder.iterdir())[0]
    truncated_file.write_bytes(b"")  # as after a crash
    write_file(speech_folder / f".{truncated_file.name}.1234.part", "half")
    speech_synthesis.synthesise_speech(captions, tmp_path / "spoken.csv", program, show_progress=False)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in speech_folder.iterdir()}
    assert written.path.read_bytes() == table
    assert {name for name in after if after[name][1] != before[name][1]} == {truncated_file.name}
    assert {name: content for name, (content, _) in after.items()} == {
        name: content for name, (content, _) in before.items()
    }


def test_voices_differ_and_unknown_voices_raise(program, tmp_path):
    REPLICAS["gcompris"](tmp_path)
    source, _ = convert("gcompris", DATASETS["gcompris"], tmp_path, show_progress=False)
    written, _ = speech_synthesis.synthesise_speech(source.path, tmp_path / "spoken.csv", program, show_progress=False)
    assert written.summary["licence"] == DATASETS["gcompris"].licence
    single_voice, _ = speech_synthesis.synthesise_speech(
        source.path,
        tmp_path / "one.csv",
        program,
        speech_synthesis.PROGRAMS[program].default_voices[:1],
        show_progress=False,
    )
    sizes = [
        {row.id: row.audio.stat().st_size for row in manifest.read(m.path).rows if row.audio}
        for m in (written, single_voice)
    ]
    assert sizes[0].keys() == sizes[1].keys()
    assert sizes[0] != sizes[1]
    for unknown_voice in ("nosuch", "en-us+nosuch", "-h"):
        with pytest.raises(UsageError, match="has no voice"):
            speech_synthesis.synthesise_speech(
                source.path, tmp_path / "two.csv", program, [unknown_voice], show_progress=False
            )


def test_a_missing_or_unknown_program_raises(captions, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install espeak-ng"):
        speech_synthesis.synthesise_speech(captions, tmp_path / "spoken.csv", show_progress=False)
    with pytest.raises(UsageError, match="speech program 'say' is unknown"):
        speech_synthesis.synthesise_speech(captions, tmp_path / "spoken.csv", "say", show_progress=False)


def test_captions_of_a_failing_program_are_skipped_and_noted(captions, tmp_path, monkeypatch):
    wav = write_file(tmp_path / "audio.wav", WAV)
    script = f"""#!/bin/sh
case "$1 $4" in
  -lv*) echo 'Voices available: slt' ;;
  *dog*) echo broken >&2; exit 3 ;;
  *) cp '{wav}' "$6" ;;
esac
"""
    broken = write_file(tmp_path / "bin/flite", script)
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    written, draft = speech_synthesis.synthesise_speech(captions, tmp_path / "spoken.csv", "flite", show_progress=False)
    assert written.summary["skipped"]["captions that the program could not synthesise"] == 2
    assert draft.notes == ["first failure: 'a dog barks' with voice slt: broken"]
    assert manifest.read(written.path).counts.pairs["audio-text"] == 3
    write_file(broken, script.replace("*dog*", "*"))
    with pytest.raises(ManifestError, match=r"no rows to write .* broken"):
        speech_synthesis.synthesise_speech(captions, tmp_path / "none.csv", "flite", show_progress=False)


def test_the_input_manifest_is_never_overwritten(tmp_path):
    REPLICAS["gcompris"](tmp_path)
    source, _ = convert("gcompris", DATASETS["gcompris"], tmp_path, show_progress=False)
    before = source.path.read_bytes()
    with pytest.raises(UsageError, match="choose another name"):
        speech_synthesis.synthesise_speech(source.path, source.path, show_progress=False)
    assert source.path.read_bytes() == before


def test_captions_per_row_limits_the_captions(program, captions, tmp_path):
    written, _ = speech_synthesis.synthesise_speech(
        captions, tmp_path / "spoken.csv", program, captions_per_row=1, show_progress=False
    )
    assert [row.texts[0] for row in manifest.read(written.path).rows] == [CAPTIONS[0], "a dog barks"]
    with pytest.raises(UsageError, match="--captions-per-row -1"):
        speech_synthesis.synthesise_speech(
            captions, tmp_path / "none.csv", program, captions_per_row=-1, show_progress=False
        )
