"""Output paths, and files outside the copy."""

import json
from pathlib import Path

import pytest

from tests.data.dataset_replicas import REPLICAS, write_csv, write_file
from tests.data.datasets.conversion import convert_copy, convert_with_notes, unique_wav
from triptych.data import manifest
from triptych.data.datasets import DATASETS
from triptych.data.datasets.convert import convert, default_output_path
from triptych.errors import UsageError


def test_default_output_and_relative_paths(tmp_path):
    root = tmp_path / "copy"
    REPLICAS["gcompris"](root)
    written, _ = convert("gcompris", DATASETS["gcompris"], root, tmp_path / "above.jsonl", show_progress=False)
    assert not written.needs_allow_outside
    assert json.loads(written.path.read_text().splitlines()[0])["image"] == "copy/images/orange_fruit.jpg"
    written, _ = convert("gcompris", DATASETS["gcompris"], root, tmp_path / "beside/m.csv", show_progress=False)
    assert written.needs_allow_outside
    assert manifest.read(written.path).rows == ()
    assert len(manifest.read(written.path, allow_outside=True).rows) == 5
    root.chmod(0o555)  # root could still write, but a read-only folder stays unchanged
    assert default_output_path("gcompris", DATASETS["gcompris"], root) == Path("gcompris/manifest.csv")
    root.chmod(0o755)


def test_files_outside_the_copy_are_skipped(tmp_path):
    root = tmp_path / "copy"
    write_file(tmp_path / "secret.jpg")
    REPLICAS["gcompris"](root)
    write_csv(
        root / "meta.csv",
        "id,image,chapter,lesson,text_en,text_fr,speech_en_US,speech_fr",
        "a,../../secret.jpg,,,a,,o1.ogg,",
        f"b,{tmp_path / 'secret.jpg'},,,b,,o3.ogg,",
        "c,coin.jpg,,,c,,c1.ogg,",
    )
    converted, summary = convert_copy(root, "gcompris", tmp_path / "m.csv")
    assert [row.image is not None for row in converted.rows] == [False, False, True]
    assert summary["skipped"] == {"image files outside the copy": 2}


def test_nothing_is_written_into_a_user_folder(tmp_path, monkeypatch):
    root = tmp_path / "my files" / "archive"
    write_file(root / "dogs/1.wav", unique_wav(1))
    write_file(tmp_path / "elsewhere/x")
    before = sorted(root.rglob("*"))
    source = DATASETS["folder"]
    for working_folder, expected_folder in (
        (tmp_path, tmp_path),
        (tmp_path / "elsewhere", root.parent),
        (root, root.parent),
    ):
        monkeypatch.chdir(working_folder)
        path = default_output_path("folder", source, root)
        assert path.absolute() == expected_folder / "archive-manifest.csv"
        _, written, _ = convert_with_notes(root, "folder")
        assert not written.needs_allow_outside
        assert sorted(root.rglob("*")) == before
    root.parent.chmod(0o555)
    with pytest.raises(
        UsageError, match=r"cannot write beside .* nothing is written into it by default; choose an output with -o"
    ):
        default_output_path("folder", source, root)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert default_output_path("folder", source, root) == Path("archive-manifest.csv")
    root.parent.chmod(0o755)
    (tmp_path / "my files/archive-manifest.source.json").unlink()
    with pytest.raises(UsageError, match="was not written by"):
        convert_with_notes(root, "folder")


def test_a_missing_folder_raises_with_the_expected_files():
    with pytest.raises(UsageError, match=r"triptych data esc50 FOLDER; expected: meta/esc50\.csv"):
        convert("esc50", DATASETS["esc50"], None, show_progress=False)


def test_an_unknown_option_raises(tmp_path):
    with pytest.raises(UsageError, match="dataset 'coco' has no option --fold; its options: --splits"):
        convert("coco", DATASETS["coco"], tmp_path, tmp_path / "m.csv", {"fold": 1}, show_progress=False)
