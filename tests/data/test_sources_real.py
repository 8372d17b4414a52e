"""The sources on real data sets, where they are here; the figures are those of the published sets."""

from pathlib import Path

import pytest

from tests.real_data import find_dataset_or_skip
from triptych.data import manifest
from triptych.data.sources import SOURCES, esc50
from triptych.data.sources.convert import convert

pytestmark = pytest.mark.slow


def convert_real(source: str, tmp_path: Path, **options) -> manifest.Manifest:
    """The manifest of a real copy, with no problem in it."""
    folder = find_dataset_or_skip(source) if source != "tuxpaint" else SOURCES["tuxpaint"].installed_path
    if folder is None or not folder.is_dir():
        pytest.skip("tuxpaint-stamps-default is not installed")
    written, _ = convert(source, SOURCES[source], folder, tmp_path / "m.csv", options, show_progress=False)
    table = manifest.read(written.path, allow_outside=True)
    assert table.problems == ()
    return table


def test_esc50_is_complete_and_no_recording_crosses_class_folds(tmp_path):
    table = convert_real("esc50", tmp_path, classes=1)
    counts = table.counts
    assert (counts.rows, counts.captions, counts.splits) == (2000, 4000, {"train": 1200, "valid": 400, "test": 400})
    folds = esc50.assign_class_folds(sorted(label.replace(" ", "_") for label in counts.labels))
    assert sorted(folds.values()) == sorted([1, 2, 3, 4, 5] * 10)
    folds_by_recording: dict[str, set[int]] = {}
    for row in table.rows:
        folds_by_recording.setdefault(row.id.split("-")[1], set()).add(folds[(row.label or "").replace(" ", "_")])
    assert [recording for recording, own in folds_by_recording.items() if len(own) > 1] == []


def test_esc50_clips_with_equal_titles_share_a_group(tmp_path):
    table = convert_real("esc50", tmp_path, captions="titles", fold=2)
    by_title: dict[tuple[str, str | None], set[str]] = {}
    for row in table.rows:
        by_title.setdefault((row.texts[0].casefold(), row.split), set()).add(row.group)
    assert {len(groups) for groups in by_title.values()} == {1}
    assert len(by_title) == table.counts.groups


def test_flickr8k_has_its_published_size(tmp_path):
    counts = convert_real("flickr8k", tmp_path).counts
    assert (counts.rows, counts.splits) == (8000, {"train": 6000, "valid": 1000, "test": 1000})
    assert counts.captions == 39_990  # ten captions stand twice under one photograph


def test_gcompris_in_all_its_languages(tmp_path):
    english = convert_real("gcompris", tmp_path)
    assert english.counts.pairs == {"audio-image": 1075, "audio-text": 1075, "image-text": 1098}
    both = convert_real("gcompris", tmp_path, language="both")
    assert both.counts.rows == 2176
    english_splits = {row.id: row.split for row in english.rows}
    assert all(row.split == english_splits[row.id.partition(":")[0]] for row in both.rows)


def test_tuxpaint_where_it_is_installed(tmp_path):
    counts = convert_real("tuxpaint", tmp_path).counts
    assert counts.rows > 800
    assert counts.pairs["audio-image"] > 150


def test_esc50_as_published_has_its_titles_in_its_licence(tmp_path):
    data = find_dataset_or_skip("esc50")
    published = tmp_path / "published"
    (published / "meta").mkdir(parents=True)
    lines = (data / "meta.csv").read_text(encoding="utf-8").splitlines()
    (published / "meta/esc50.csv").write_text("\n".join(",".join(line.split(",")[:7]) for line in lines))
    (published / "audio").symlink_to(data / "audio")
    (published / "LICENSE").symlink_to(data / "LICENSE")
    written, _ = convert("esc50", SOURCES["esc50"], published, tmp_path / "p.csv", show_progress=False)
    reference, _ = convert("esc50", SOURCES["esc50"], data, tmp_path / "m.csv", show_progress=False)
    assert written.summary["captions"] == 4000
    assert written.summary["test"] == reference.summary["test"]
