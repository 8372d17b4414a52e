"""A user's own folder: captions from names that say something, splits as announced, nothing written among the files."""

from collections import Counter
from pathlib import Path

import pytest

from tests.app.cli.test_data import triptych
from tests.data.dataset_replicas import WAV, png_bytes, write_file
from triptych.data import manifest
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert, default_output_path
from triptych.data.sources.draft import DraftItem, assign_hash_splits
from triptych.data.sources.filename_captions import build_caption, extract_words
from triptych.errors import ManifestError, UsageError


def convert_folder(root, output=None):
    written, draft = convert("folder", SOURCES["folder"], root, output, show_progress=False)
    return {row.id: row for row in manifest.read(written.path).rows}, written, draft


def unique_wav(number):
    """A sound that no other file is."""
    return WAV + number.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dog_barking_03", "dog barking"),
        ("GoldenGateBridge", "golden gate bridge"),
        ("NASALaunch", "nasa launch"),
        ("2019-08-12 Lisbon", "lisbon"),
        ("my%20dog (2)", "my dog"),
        ("rain (copy)", "rain"),
        ("MVI_0012_dog", "dog"),
        ("door-wood.knock12", "door wood knock"),
        ("photo of a dog", "photo of a dog"),
        ("Anna's wedding", "anna's wedding"),
        ("Straße", "straße"),
        ("犬の鳴き声", "犬の鳴き声"),
        ("camera", "camera"),
        *(
            (name, "")
            for name in ("IMG_2034", "DSC01234", "IMG-20190812-WA0003", "PXL_20210101_123456789.MP", "P1010034")
        ),
        *(
            (name, "")
            for name in ("1-100032-A-0", "1000268201_693b08cb0e", "3f2a9c0b7d", "20190812_142233", "07", "", "a")
        ),
        *(
            (name, "")
            for name in ("untitled", "New Recording 12", "Voice 001", "Track 03", "image (3)", "Kopie von IMG_12")
        ),
        ("Screenshot 2020-01-02 at 10.12 AM", ""),
        ("\udcff\udcfe", ""),
    ],
)
def test_words_in_names_of_files(name, words):
    assert extract_words(name) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lisbon 2019", "lisbon"),
        ("heavy_rain", "heavy rain"),
        ("holiday_pictures", "holiday pictures"),
        *((name, "") for name in ("untitled folder", "untitled folder 2", "New Folder (3)", "Neuer Ordner", "DCIM")),
        *(
            (name, "")
            for name in ("100CANON", "101MSDCF", "audio", "misc", "Camera Roll", "from phone", "old laptop", "08")
        ),
    ],
)
def test_words_in_names_of_folders(name, words):
    assert extract_words(name, is_folder=True) == words


@pytest.mark.parametrize(
    ("name", "folder", "caption"),
    [
        ("barking", "dog", "barking, dog"),
        ("", "dog", "dog"),
        ("barking", "", "barking"),
        ("heavy rain on a roof", "rain", "heavy rain on a roof"),
        ("rain", "heavy rain", "heavy rain"),
        ("", "", ""),
    ],
)
def test_a_caption_has_the_words_of_both_names_once(name, folder, caption):
    assert build_caption(name, folder) == caption


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


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ([1] * 1452, {"train": 1162, "valid": 145, "test": 145}),
        ([1317] + [1] * 135, {"train": 1317, "valid": 68, "test": 67}),
        ([100] * 10, {"train": 800, "valid": 100, "test": 100}),
        ([7] * 30, {"train": 168, "valid": 21, "test": 21}),
        ([100] * 3, {"train": 100, "valid": 100, "test": 100}),
        ([1] * 10, {"train": 8, "valid": 1, "test": 1}),
        ([1] * 2, {"train": 2}),
    ],
)
def test_splits_are_as_near_to_80_10_10_as_whole_units_allow(sizes, splits):
    items = [DraftItem(f"{unit}/{n}", group=f"unit {unit}") for unit, size in enumerate(sizes) for n in range(size)]
    items_with_splits = assign_hash_splits(items, "any", {})
    assert Counter(item.split for item in items_with_splits) == splits
    assert len({(item.group, item.split) for item in items_with_splits}) == len(sizes)
    assert items_with_splits == assign_hash_splits(items, "any", {})


def test_adding_rows_moves_few_others():
    items = [DraftItem(f"row {n}") for n in range(1000)]
    before = {item.id: item.split for item in assign_hash_splits(items, "any", {})}
    after = assign_hash_splits([*items, *(DraftItem(f"new {n}") for n in range(10))], "any", {})
    assert sum(before.get(item.id, item.split) != item.split for item in after) < 10


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


def test_nothing_is_written_into_a_user_folder(tmp_path, monkeypatch):
    root = tmp_path / "my files" / "archive"
    write_file(root / "dogs/1.wav", unique_wav(1))
    write_file(tmp_path / "elsewhere/x")
    before = sorted(root.rglob("*"))
    source = SOURCES["folder"]
    for working_folder, expected_folder in (
        (tmp_path, tmp_path),
        (tmp_path / "elsewhere", root.parent),
        (root, root.parent),
    ):
        monkeypatch.chdir(working_folder)
        path = default_output_path("folder", source, root)
        assert path.absolute() == expected_folder / "archive-manifest.csv"
        _, written, _ = convert_folder(root)
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
        convert_folder(root)


def test_the_command_prints_path_splits_and_skipped_files(tmp_path):
    root = tmp_path / "my archive"
    for number in range(30):
        write_file(root / f"untitled folder/barking dog {number}.wav", unique_wav(number))
    write_file(root / "untitled folder/IMG_1.wav", unique_wav(99))
    write_file(root / "a.heic")
    result = triptych("data", "folder", root, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "wrote: my archive-manifest.csv" in result.stdout
    assert "splits  train 24, " in result.stdout
    assert "train 24 (80%), valid 3 (10%), test 3 (10%)" in result.stderr
    assert "skipped: files without a caption: neither file nor folder name is meaningful: 1" in result.stderr
    assert ": barking dog\n" in result.stderr
    assert "ignored files of other types: .heic 1" in result.stderr
    assert "next: triptych validate 'my archive-manifest.csv'" in result.stderr
    checked = triptych("validate", "my archive-manifest.csv", cwd=tmp_path)
    assert checked.returncode == 0
    assert "warning: few captions: 1" in checked.stdout


def test_a_folder_without_meaningful_names_raises(tmp_path):
    write_file(tmp_path / "archive/IMG_1.wav", unique_wav(1))
    with pytest.raises(ManifestError, match=r"no rows to write .*files without a caption"):
        convert_folder(tmp_path / "archive")
