"""ESC-50: folds, captions, groups and class-disjoint splits."""

import pytest

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy, convert_real, rows_by_id
from tests.real_data import find_dataset_or_skip
from triptych.data.datasets import DATASETS, esc50
from triptych.data.datasets.convert import convert
from triptych.errors import ManifestError, UsageError


def test_esc50_folds_captions_and_groups(tmp_path):
    REPLICAS["esc50"](tmp_path)
    converted, _ = convert_copy(tmp_path, "esc50", tmp_path / "m.csv", fold=5)
    assert {row.split: row.id[0] for row in converted.rows if row.split != "train"} == {"test": "5", "valid": "1"}
    row = rows_by_id(converted)["5-54-A-4"]
    assert (row.label, row.texts) == ("sea waves", ("this is a sound of sea waves", "My sea waves (live)"))
    # within a split, the clips of a class share a group
    assert {r.id for r in converted.rows if r.group == row.group} == {"5-54-A-4"}
    assert rows_by_id(converted)["2-24-A-4"].group == rows_by_id(converted)["3-34-A-4"].group != row.group
    titles, _ = convert_copy(tmp_path, "esc50", tmp_path / "t.csv", captions="titles")
    assert all(len(row.texts) == 1 and row.group.startswith(row.texts[0].casefold()) for row in titles.rows)
    (tmp_path / "LICENSE").unlink()
    classes, _ = convert_copy(tmp_path, "esc50", tmp_path / "c.csv")
    assert {len(row.texts) for row in classes.rows} == {1}
    with pytest.raises(ManifestError, match="there are no titles"):
        convert_copy(tmp_path, "esc50", tmp_path / "e.csv", captions="titles")


def test_esc50_with_two_splits_moves_valid_to_train(tmp_path):
    REPLICAS["esc50"](tmp_path)
    three, _ = convert_copy(tmp_path, "esc50", tmp_path / "three.csv", fold=5)
    two, _ = convert_copy(tmp_path, "esc50", tmp_path / "two.csv", fold=5, splits="two")
    assert "valid" in {row.split for row in three.rows}
    moved = {"train": "train", "valid": "train", "test": "test"}
    assert {row.id: row.split for row in two.rows} == {row.id: moved[row.split or ""] for row in three.rows}
    with pytest.raises(UsageError, match="two"):
        convert_copy(tmp_path, "esc50", tmp_path / "e.csv", splits="one")


def test_esc50_class_folds_never_share_a_class(tmp_path):
    REPLICAS["esc50"](tmp_path)
    test_classes = set()
    for number in range(1, 6):
        converted, _ = convert_copy(tmp_path, "esc50", tmp_path / "m.csv", classes=number)
        by_split = {s: {r.label for r in converted.rows if r.split == s} for s in ("train", "valid", "test")}
        assert sum(map(len, by_split.values())) == 5
        test_classes |= by_split["test"]
    assert len(test_classes) == 5
    with pytest.raises(UsageError, match="exclude each other"):
        convert_copy(tmp_path, "esc50", tmp_path / "m.csv", classes=1, fold=1)
    with pytest.raises(UsageError, match="--fold '6' is unknown"):
        convert_copy(tmp_path, "esc50", tmp_path / "m.csv", fold=6)


@pytest.mark.slow
def test_esc50_is_complete_and_no_recording_crosses_class_folds(tmp_path):
    table = convert_real("esc50", tmp_path, classes=1)
    counts = table.counts
    assert (counts.rows, counts.captions, counts.splits) == (2000, 4000, {"train": 1200, "valid": 400, "test": 400})
    folds = esc50.assign_class_folds(sorted(label.replace(" ", "_") for label in counts.labels))
    assert sorted(folds.values()) == sorted([1, 2, 3, 4, 5] * 10)
    folds_by_recording: dict[str, set[int]] = {}
    for row in table.rows:
        folds_by_recording.setdefault(row.id.split("-")[1], set()).add(folds[(row.label or "").replace(" ", "_")])
    assert [recording for recording, folds in folds_by_recording.items() if len(folds) > 1] == []


@pytest.mark.slow
def test_esc50_clips_with_equal_titles_share_a_group(tmp_path):
    table = convert_real("esc50", tmp_path, captions="titles", fold=2)
    by_title: dict[tuple[str, str | None], set[str]] = {}
    for row in table.rows:
        by_title.setdefault((row.texts[0].casefold(), row.split), set()).add(row.group)
    assert {len(groups) for groups in by_title.values()} == {1}
    assert len(by_title) == table.counts.groups


@pytest.mark.slow
def test_esc50_as_published_has_its_titles_in_its_licence(tmp_path):
    data = find_dataset_or_skip("esc50")
    published = tmp_path / "published"
    (published / "meta").mkdir(parents=True)
    lines = (data / "meta.csv").read_text(encoding="utf-8").splitlines()
    (published / "meta/esc50.csv").write_text("\n".join(",".join(line.split(",")[:7]) for line in lines))
    (published / "audio").symlink_to(data / "audio")
    (published / "LICENSE").symlink_to(data / "LICENSE")
    written, _ = convert("esc50", DATASETS["esc50"], published, tmp_path / "p.csv", show_progress=False)
    reference, _ = convert("esc50", DATASETS["esc50"], data, tmp_path / "m.csv", show_progress=False)
    assert written.summary["captions"] == 4000
    assert written.summary["test"] == reference.summary["test"]
