"""A folder of the user: captions from names, duplicates and splits."""

from collections import Counter

import pytest

from tests.data.dataset_replicas import REPLICAS, png_bytes, write_file
from tests.data.datasets.conversion import convert_copy, convert_with_notes, rows_by_id, unique_wav
from triptych.errors import ManifestError


def convert_folder(root):
    table, written, draft = convert_with_notes(root, "folder")
    return rows_by_id(table), written, draft


def test_folder_names_and_labels(tmp_path):
    REPLICAS["folder"](tmp_path)
    converted, _ = convert_copy(tmp_path, "folder")
    by_id = rows_by_id(converted)
    assert set(by_id) == {"train/dog", "test/heavy_rain/1", "test/heavy_rain/2"}
    assert by_id["train/dog"].modalities == ("audio", "image", "text")
    assert by_id["train/dog"].texts == ("a dog", "it barks")
    first = by_id["test/heavy_rain/1"]
    assert (first.texts, first.label, first.group, first.split) == (("heavy rain",), "heavy rain", "heavy rain", "test")


def test_captions_come_from_meaningful_names(tmp_path):
    root = tmp_path / "archive"
    names = [
        "untitled folder/dog_barking_01.wav",
        "Lisbon 2019/untitled folder/IMG_1.wav",
        "Lisbon 2019/DCIM/100CANON/beach.wav",
        "untitled folder/IMG_2.wav",
        "misc/Track 03.wav",
    ]
    for number, name in enumerate(names):
        write_file(root / name, unique_wav(number))
    rows, written, draft = convert_folder(root)
    assert {row.texts for row in rows.values()} == {("dog barking",), ("lisbon",), ("beach, lisbon",)}
    assert {row.label for row in rows.values()} == {None, "lisbon"}
    assert written.summary["skipped"] == {"files without a caption: neither file nor folder name is meaningful": 2}
    notes = "\n".join(draft.notes)
    assert "3 rows have captions from file and folder names, 3 distinct, such as" in notes
    assert "untitled folder/dog_barking_01: dog barking" in notes
    assert "to use files without a caption" in notes


def test_paired_rows_and_videos_keep_their_own_group(tmp_path):
    root = tmp_path / "archive"
    write_file(root / "concerts/MVI_1.mp4")
    write_file(root / "concerts/MVI_2.mp4", b"other")
    write_file(root / "concerts/encore.mp4", b"third")
    write_file(root / "concerts/a.wav", unique_wav(1))
    write_file(root / "concerts/a.png", png_bytes())
    rows, _, _ = convert_folder(root)
    assert {name: row.texts for name, row in rows.items()} == {
        "concerts/MVI_1": (),
        "concerts/MVI_2": (),
        "concerts/encore": ("encore, concerts",),
        "concerts/a": (),
    }
    assert len({row.group for row in rows.values()}) == 4


def test_duplicate_files_are_one_row_with_all_captions(tmp_path):
    root = tmp_path / "archive"
    for name in ("dogs/rex.wav", "backup/old laptop/dogs/rex.wav", "favourites/a happy dog.wav"):
        write_file(root / name, unique_wav(0))
    write_file(root / "dogs/bella.wav", unique_wav(1))
    rows, written, _ = convert_folder(root)
    assert {name: row.texts for name, row in rows.items()} == {
        "dogs/rex": ("rex, dogs", "a happy dog"),
        "dogs/bella": ("bella, dogs",),
    }
    assert written.summary["skipped"] == {"duplicate files (their captions were added to the first file)": 2}


def test_rows_that_share_a_file_stay_in_one_split(tmp_path):
    root = tmp_path / "archive"
    for number in range(40):
        write_file(root / f"{number}.png", png_bytes(number // 10))  # four covers of ten songs each
        write_file(root / f"{number}.wav", unique_wav(number))
    rows, _, _ = convert_folder(root)
    covers = {(int(name) // 10, row.split) for name, row in rows.items()}
    assert len(covers) == 4
    assert {split for _, split in covers} == {"train", "valid", "test"}


def test_two_media_folders_hold_different_items(tmp_path):
    root = tmp_path / "archive"
    for number, folder in enumerate(("photos", "pictures")):
        write_file(root / folder / "beach.png", png_bytes(number))
    rows, _, _ = convert_folder(root)
    assert len(rows) == 2


def test_a_folder_of_trains_is_no_split(tmp_path):
    root = tmp_path / "archive"
    for number in range(30):
        write_file(root / ("train", "plane", "ship")[number % 3] / f"{number}.wav", unique_wav(number))
    rows, written, _ = convert_folder(root)
    assert {row.texts for row in rows.values()} == {("train",), ("plane",), ("ship",)}
    assert written.summary["splits"] == {"train": 24, "valid": 3, "test": 3}


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train", "test", "other"), {"train", "test", None}),
        (("dev",), {"valid"}),
        (("a/val", "a/train"), {"valid", "train"}),
    ],
)
def test_folders_that_are_splits(tmp_path, folders, splits):
    for number, folder in enumerate(folders):
        write_file(tmp_path / "archive" / folder / "dogs/1.wav", unique_wav(number))
    rows, _, draft = convert_folder(tmp_path / "archive")
    assert {row.split for row in rows.values()} == splits
    assert {text for row in rows.values() for text in row.texts} <= {"dogs"}
    assert any("1 rows are in no split folder" in note for note in draft.notes) == (None in splits)


def test_duplicates_across_splits_are_noted(tmp_path):
    for split in ("train", "test"):
        write_file(tmp_path / "archive" / split / "dogs/1.wav", unique_wav(0))
    rows, _, draft = convert_folder(tmp_path / "archive")
    assert len(rows) == 2
    assert any("1 files have duplicates in another split" in note for note in draft.notes)


def test_the_noted_split_sizes_are_those_written(tmp_path):
    root = tmp_path / "archive"
    for number in range(200):
        write_file(
            root / f"{('dogs', 'cats', 'untitled folder')[number % 3]}/{number}.wav",
            b"" if number % 7 == 0 else unique_wav(number),
        )
    rows, written, draft = convert_folder(root)
    (note,) = [note for note in draft.notes if "the dataset has no splits" in note]
    counts = Counter(row.split for row in rows.values())
    assert written.summary["splits"] == counts
    assert note.endswith(
        ", ".join(f"{name} {counts[name]} ({counts[name] / len(rows):.0%})" for name in ("train", "valid", "test"))
    )
    assert counts["valid"] == counts["test"] == round(len(rows) / 10)


def test_a_folder_without_meaningful_names_raises(tmp_path):
    write_file(tmp_path / "archive/IMG_1.wav", unique_wav(1))
    with pytest.raises(ManifestError, match=r"no rows to write .*files without a caption"):
        convert_folder(tmp_path / "archive")
