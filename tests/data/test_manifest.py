"""Reading manifests: every format gives the same rows, and all errors are ManifestErrors."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.manifest_files import FORMATS, ROWS, make_folder, read_or_error, write_manifest
from triptych.data.manifest import read, require_valid, summarise
from triptych.errors import ManifestError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_the_same_rows(folder: Path, file_format: str) -> None:
    manifest = read(write_manifest(folder / f"manifest.{file_format}", ROWS))
    assert manifest.problems == ()
    x, y, z = manifest.rows
    first = 2 if file_format == "csv" else 1  # the header is a spreadsheet's row 1
    assert [row.number for row in manifest.rows] == [first, first + 1, first + 2]
    assert (x.id, x.audio, x.image, x.texts) == ("x", folder / "a.wav", folder / "a.png", ("a dog",))
    assert (x.group, x.split, x.label, x.start, x.end) == ("g", "train", "dog", None, None)
    assert (y.audio, y.texts, y.label) == (folder / "sub" / "c.wav", ('says "hi",\nloud',), None)
    assert (z.video, z.texts, z.start, z.end) == (folder / "a.mp4", ("ein Vögelchen 🐦",), 1.5, 2.0)
    assert z.group == f"(row-{z.number})"
    assert x.modalities == z.modalities == ("audio", "image", "text")


def test_rows_without_id_and_group_get_their_own(folder: Path) -> None:
    rows = read(
        write_manifest(folder / "m.jsonl", [{"audio": "a.wav", "text": "a"}, {"audio": "b.wav", "text": "b"}])
    ).rows
    assert [(row.id, row.group) for row in rows] == [("row-1", "(row-1)"), ("row-2", "(row-2)")]


@pytest.mark.parametrize("file_format", FORMATS)
def test_hugging_face_folder(folder: Path, file_format: str) -> None:
    rows = [{"file_name": "a.wav", "text": "a"}, {"file_name": "a.png", "text": "b"}, {"file_name": "a.mp4"}]
    write_manifest(folder / f"metadata.{file_format}", rows)
    manifest = read(folder)
    a, b, c = manifest.rows
    assert manifest.path == folder / f"metadata.{file_format}"
    assert (a.audio, a.image, a.texts) == (folder / "a.wav", None, ("a",))
    assert (b.audio, b.image, b.texts) == (None, folder / "a.png", ("b",))
    assert (c.video, c.modalities) == (folder / "a.mp4", ("audio", "image"))


@pytest.mark.parametrize("audio_folder", [".", "{part}", "clotho_audio_{part}", "clotho_audio_{part}/{part}"])
@pytest.mark.parametrize(
    ("subset", "split"), [("development", "train"), ("validation", "valid"), ("evaluation", "test")]
)
def test_clotho(tmp_path: Path, audio_folder: str, subset: str, split: str) -> None:
    audio = tmp_path / audio_folder.format(part=subset)
    audio.mkdir(parents=True, exist_ok=True)
    (audio / "Rain 1.wav").write_bytes(b"content")
    rows = [
        {"file_name": name} | {f"caption_{n}": f"rain {n}" for n in range(1, 6)} for name in ("gone.wav", "Rain 1.wav")
    ]
    manifest = read(write_manifest(tmp_path / f"clotho_captions_{subset}.csv", rows))
    (row,) = manifest.rows
    assert row.audio is not None
    assert row.audio.samefile(audio / "Rain 1.wav")
    assert (row.split, row.texts) == (split, tuple(f"rain {n}" for n in range(1, 6)))
    assert [str(problem) for problem in manifest.problems] == ["row 2, file_name: no such file: gone.wav"]


def test_clotho_columns_in_a_file_of_another_name_have_no_split(folder: Path) -> None:
    (row,) = read(write_manifest(folder / "captions.csv", [{"file_name": "a.wav", "caption_1": "x"}])).rows
    assert row.split is None


def test_folder_prefers_manifest_to_metadata(folder: Path) -> None:
    for name in ("metadata.csv", "manifest.parquet", "manifest.jsonl"):
        write_manifest(folder / name, [{"text": name}])
    assert read(folder).path.name == "manifest.jsonl"


# --- splits, summaries, errors


def test_split(folder: Path) -> None:
    manifest = read(write_manifest(folder / "m.csv", ROWS))
    assert [row.id for row in manifest.split("train").rows] == ["x", "y"]
    assert manifest.split("test").counts.rows == 1
    with pytest.raises(ManifestError, match="split 'trian' is unknown; known: test, train; did you mean 'train'"):
        manifest.split("trian")


def test_summary_counts_and_groups(folder: Path) -> None:
    missing_rows = [{"id": f"n{n}", "audio": f"gone{n}.wav", "image": f"gone{n}.png"} for n in range(10)]
    result = summarise(read(write_manifest(folder / "m.jsonl", [*ROWS, {"text": "single"}, *missing_rows])))
    assert json.loads(json.dumps(result)) == result
    assert result["counts"] == {
        "rows": 4,
        "unusable": 10,
        "modalities": {"audio": 3, "image": 3, "video": 1, "text": 4},
        "pairs": {"audio-image": 3, "audio-text": 3, "image-text": 3},
        "captions": 4,
        "unique_captions": 4,
        "files": 5,
        "groups": 3,
        "splits": {"train": 2, "test": 1},
        "labels": {"dog": 1},
    }
    assert (result["errors"], result["warnings"]) == (20, 1)
    missing, unpaired = result["problems"]
    assert (missing["severity"], missing["category"], missing["total"], missing["more"]) == (
        "error",
        "missing file",
        20,
        15,
    )
    assert missing["examples"][:2] == ["row 5, audio: no such file: gone0.wav", "row 5, image: no such file: gone0.png"]
    assert len(missing["examples"]) == 5
    assert (unpaired["severity"], unpaired["category"], unpaired["total"], unpaired["more"]) == (
        "warning",
        "unpaired row",
        1,
        0,
    )


def test_require(folder: Path) -> None:
    fine = read(write_manifest(folder / "m.csv", [{"text": "only a warning"}]))
    assert require_valid(fine) is fine
    bad = read(write_manifest(folder / "m.csv", [{"audio": f"{n}.wav"} for n in range(1200)]))
    with pytest.raises(ManifestError) as caught:
        require_valid(bad)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder / 'm.csv'}: 1,200 errors"
    assert lines[1] == "  row 2, audio: no such file: 0.wav"
    assert lines[-2:] == ["  … and 1,195 more", f"run `triptych validate {folder / 'm.csv'}` to list all errors"]


def test_problems_come_in_the_order_of_rows(folder: Path) -> None:
    (folder / "m.csv").write_text("audio,text\na.wav\n,x\ngone.wav,x\na.wav,x,x\n", encoding="utf-8")
    assert [problem.row for problem in read(folder / "m.csv").problems] == [2, 3, 4, 5]


# --- properties


captions = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(texts=st.lists(captions, min_size=1, max_size=6))
@pytest.mark.parametrize("file_format", FORMATS)
def test_captions_survive_every_format(tmp_path: Path, file_format: str, texts: list[str]) -> None:
    numbered = {f"caption_{number}": text for number, text in enumerate(texts)}
    listed = {"captions": json.dumps(texts) if file_format == "csv" else texts}
    for row in (numbered, listed):
        manifest = read(write_manifest(tmp_path / f"m.{file_format}", [row]))
        assert manifest.rows[0].texts == tuple(texts)
        assert all(problem.category in ("duplicate caption", "unpaired row") for problem in manifest.problems)


cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["audio", "image", "file_name", "text", "captions", "caption_1", "id", "group", "start", "end"])


@many
@given(rows=st.lists(st.dictionaries(names | st.text(), cells), min_size=1, max_size=4))
def test_any_json_is_diagnosed(tmp_path: Path, rows: list[dict]) -> None:
    manifest = read_or_error(write_manifest(tmp_path / "m.jsonl", rows))
    if isinstance(manifest, str):
        assert "no known column" in manifest
        return
    assert len(manifest.rows) + manifest.counts.unusable == len(rows)
    assert all(str(problem).isprintable() for problem in manifest.problems)


def test_rows_and_problems_are_values(folder: Path) -> None:
    manifest = read(write_manifest(folder / "m.csv", ROWS))
    assert manifest == read(folder / "m.csv")
    assert replace(manifest, rows=()) != manifest
