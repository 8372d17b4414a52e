"""Every source on a tiny replica of its data set: official splits, captions, groups, and what is left out."""

import json
from pathlib import Path

import pytest

from tests.data.dataset_replicas import REPLICAS, WAV, hf_parquet, karpathy, write_csv, write_file
from triptych.data import manifest
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert, default_output_path
from triptych.data.sources.draft import DraftItem, find_connected_groups, separate_groups_by_split, split_by_hash
from triptych.data.sources.manifest_writer import sidecar_path
from triptych.errors import ManifestError, UsageError


def convert_copy(root: Path, source: str, output: Path | None = None, **options) -> tuple[manifest.Manifest, dict]:
    """Convert the copy in a folder; gives the manifest that is read back and the sidecar."""
    written, _ = convert(source, SOURCES[source], root, output, options, show_progress=False)
    return manifest.read(written.path, allow_outside=written.needs_allow_outside), written.summary


@pytest.fixture(params=SOURCES)
def copy(request, tmp_path) -> tuple[str, Path]:
    """A source, and a replica of its data set."""
    root = tmp_path / "copy"
    REPLICAS[request.param](root)
    return request.param, root


def rows_by_id(table: manifest.Manifest) -> dict[str, manifest.Row]:
    return {row.id: row for row in table.rows}


def comparable_rows(table: manifest.Manifest) -> list[tuple]:
    """The rows without what differs between the forms of a table: their numbers, and groups named after them."""
    groups = [None if row.group.startswith("(row-") else row.group for row in table.rows]
    return [
        (r.id, r.audio, r.image, r.texts, group, r.split, r.label) for r, group in zip(table.rows, groups, strict=True)
    ]


def test_every_source_gives_a_manifest_without_problems(copy):
    source, root = copy
    converted, summary = convert_copy(root, source)
    assert converted.path == (root.parent / "copy-manifest.csv" if source == "folder" else root / "manifest.csv")
    assert converted.problems == ()
    assert summary["rows"] == len(converted.rows) > 0
    assert json.loads(sidecar_path(converted.path).read_text())["licence"] == SOURCES[source].licence
    assert not list(root.parent.rglob("*.part"))


def test_the_same_copy_gives_the_same_bytes_and_every_format_the_same_rows(copy, tmp_path):
    source, root = copy
    first, summary = convert_copy(root, source, root / "m.csv")
    before = {path.name: path.read_bytes() for path in root.glob("m.*")}
    again, _ = convert_copy(root, source, root / "m.csv")
    assert before == {path.name: path.read_bytes() for path in root.glob("m.*")}
    assert comparable_rows(first) == comparable_rows(again)
    if source in {"webdataset", "hf"}:
        return  # their files are unpacked beside each manifest, so paths differ
    for suffix in (".jsonl", ".parquet"):
        other, same = convert_copy(root, source, root / f"n{suffix}")
        assert comparable_rows(first) == comparable_rows(other)
        assert summary["test"] == same["test"]


def test_an_empty_copy_raises_with_the_expected_files(copy, tmp_path):
    source, _ = copy
    empty = tmp_path / "empty"
    write_file(empty / "strange.xyz")
    with pytest.raises(ManifestError, match=r"expects .*strange\.xyz"):
        convert_copy(empty, source)
    with pytest.raises(ManifestError, match="no such file or folder"):
        convert_copy(tmp_path / "nowhere", source, tmp_path / "m.csv")
    assert not (empty / "manifest.csv").exists()


def test_esc50_folds_captions_and_groups(tmp_path):
    REPLICAS["esc50"](tmp_path)
    converted, _ = convert_copy(tmp_path, "esc50", tmp_path / "m.csv", fold=5)
    assert {row.split: row.id[0] for row in converted.rows if row.split != "train"} == {"test": "5", "valid": "1"}
    row = rows_by_id(converted)["5-54-A-4"]
    assert (row.label, row.texts) == ("sea waves", ("this is a sound of sea waves", "My sea waves (live)"))
    # the class fits every clip of it, within the split
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


def test_clotho_reads_all_parts_and_drops_repeated_captions(tmp_path):
    REPLICAS["clotho"](tmp_path)
    converted, summary = convert_copy(tmp_path, "clotho")
    assert {row.split for row in converted.rows} == {"train", "valid", "test"}
    assert {row.texts for row in converted.rows} == {("a", "b", "c", "d")}
    assert summary["skipped"] == {"rows with an error: missing file": 3}


def test_audiocaps_finds_clips_under_all_their_names(tmp_path):
    REPLICAS["audiocaps"](tmp_path)
    converted, summary = convert_copy(tmp_path, "audiocaps")
    names = {row.id: (row.audio.name, len(row.texts)) for row in converted.rows if row.audio}
    assert names == {
        "train/-aaaaaaaaaa_30": ("-aaaaaaaaaa.wav", 1),
        "val/ccccccccccc_5": ("Yccccccccccc.flac", 5),
        "test/ddddddddddd_5": ("ddddddddddd_5_15.wav", 5),
        "test/ddddddddddd_60": ("ddddddddddd_60.wav", 1),
    }
    assert summary["skipped"] == {"clips without an audio file": 1}


def test_wavcaps_separates_sites_and_skips_blacklisted_clips(tmp_path):
    REPLICAS["wavcaps"](tmp_path)
    converted, summary = convert_copy(tmp_path, "wavcaps")
    folder_by_id = {row.id: row.audio.parent.name for row in converted.rows if row.audio}
    assert folder_by_id == {
        "FreeSound/7": "FreeSound_flac",
        "SoundBible/7": "SoundBible_flac",
        "AudioSet_SL/Yx": "AudioSet_SL_flac",
    }
    assert summary["skipped"] == {"recordings on a blacklist: they are in a test set": 2}
    assert summary["test"] == {}


def test_flickr8k_has_its_official_splits(tmp_path):
    REPLICAS["flickr8k"](tmp_path)
    converted, summary = convert_copy(tmp_path, "flickr8k")
    assert {row.id: row.split for row in converted.rows} == {
        "1_a": "train",
        "2_b": "train",
        "3_c": "valid",
        "4_d": "test",
    }
    assert {len(row.texts) for row in converted.rows} == {4}  # the fifth repeats the first
    assert summary["skipped"] == {"images in no official list": 1}


def test_flickr8k_captions_can_be_single_rows(tmp_path):
    REPLICAS["flickr8k"](tmp_path)
    converted, _ = convert_copy(tmp_path, "flickr8k", captions="single")
    assert {len(row.texts) for row in converted.rows} == {1}
    assert len(converted.rows) == 16
    assert {row.group for row in converted.rows if row.split == "test"} == {"4_d"}
    with pytest.raises(UsageError, match="single, together"):
        convert_copy(tmp_path, "flickr8k", captions="apart")


def test_flickr_audio_pairs_each_reading_with_its_caption(tmp_path):
    REPLICAS["flickr_audio"](tmp_path)
    converted, summary = convert_copy(tmp_path, "flickr_audio")
    assert rows_by_id(converted)["4_d_3"].texts == ("A dog runs 3 .",)
    assert {row.group for row in converted.rows if row.split == "test"} == {"4_d"}
    assert summary["pairs"]["audio-image"] == 15
    assert summary["skipped"] == {"recordings of images in no official list": 5}


def test_coco_reads_official_or_karpathy_splits(tmp_path):
    REPLICAS["coco"](tmp_path / "own")
    converted, _ = convert_copy(tmp_path / "own", "coco")
    assert [(row.id, row.split, len(row.texts)) for row in converted.rows][1:3] == [
        ("1", "train", 5),
        ("10", "test", 5),
    ]
    assert {row.image.parent.name for row in converted.rows if row.image and row.split == "test"} == {"val2017"}
    karpathy(tmp_path / "other")
    converted, _ = convert_copy(tmp_path / "other", "coco")
    assert [row.split for row in converted.rows] == ["train", "train", "valid", "test"]
    with pytest.raises(ManifestError, match=r"dataset_coco\.json"):
        convert_copy(tmp_path / "own", "coco", splits="karpathy")


def test_places_audio_in_both_layouts(tmp_path):
    REPLICAS["places_audio"](tmp_path)
    converted, _ = convert_copy(tmp_path, "places_audio", tmp_path / "json.csv", captions="asr")
    for name in ("train", "val"):
        (tmp_path / f"metadata/{name}.json").unlink()
        write_file(tmp_path / f"lists/acl_2017_{name}_uttids", f"{name}0\n{name}1\n")
    both = [f"{part}{n}" for part in ("train", "val") for n in range(2)]
    write_file(tmp_path / "metadata/utt2wav", "\n".join(f"{name} wavs/{name}.wav" for name in both))
    write_file(tmp_path / "metadata/utt2image", "\n".join(f"{name} a/abbey/{name[:-1]}.jpg" for name in both))
    write_file(tmp_path / "metadata/utt2ASR", "\n".join(f"{name} said {name[-1]}" for name in both))
    lists, _ = convert_copy(tmp_path, "places_audio", tmp_path / "lists.csv", captions="asr")
    assert comparable_rows(converted) == comparable_rows(lists)
    assert [(row.split, row.group, row.texts) for row in converted.rows][-1] == ("test", "a/abbey/val.jpg", ("said 1",))


def test_tuxpaint_rows_are_audio_files_and_a_shared_caption_is_one_group(tmp_path):
    REPLICAS["tuxpaint"](tmp_path)
    converted, summary = convert_copy(tmp_path, "tuxpaint")
    by_id = rows_by_id(converted)
    assert set(by_id) == {"animals/dog:effect", "animals/dog:en", "animals/dog2", "plants/oak", "plants/fir:en"}
    assert len({by_id[name].group for name in ("animals/dog:effect", "animals/dog:en", "animals/dog2")}) == 1
    assert by_id["plants/fir:en"].image is None
    assert summary["skipped"] == {"images that exist as SVG only, which is not supported": 1}
    french, _ = convert_copy(tmp_path, "tuxpaint", tmp_path / "fr.csv", language="fr,es", audio="speech")
    assert rows_by_id(french)["animals/dog:fr"].texts == ("Un chien.",)
    assert rows_by_id(french)["animals/dog2"].group != rows_by_id(french)["animals/dog:fr"].group
    assert {row.id.partition(":")[0]: row.split for row in french.rows}["animals/dog"] == by_id["animals/dog2"].split
    with pytest.raises(UsageError, match="--language xx is unknown; known: en, es, fr, all"):
        convert_copy(tmp_path, "tuxpaint", language="xx")


def test_gcompris_words_that_sound_alike_share_a_group(tmp_path):
    REPLICAS["gcompris"](tmp_path)
    english, french = (
        rows_by_id(convert_copy(tmp_path, "gcompris", tmp_path / f"{lang}.csv", language=lang)[0])
        for lang in ("en", "fr")
    )
    assert english["orange_fruit"].group == english["orange_color"].group
    assert english["coin"].group != english["room"].group
    assert french["coin"].group == french["room"].group
    assert english["room"].audio is None
    assert "sea" not in french
    both, _ = convert_copy(tmp_path, "gcompris", tmp_path / "both.csv", language="both")
    assert {row.split for row in both.rows if row.id.startswith(("coin", "room"))} == {english["coin"].split}
    assert english["coin"].split == english["room"].split == french["room"].split


def test_folder_names_and_labels(tmp_path):
    REPLICAS["folder"](tmp_path)
    converted, _ = convert_copy(tmp_path, "folder")
    by_id = rows_by_id(converted)
    assert set(by_id) == {"train/dog", "test/heavy_rain/1", "test/heavy_rain/2"}
    assert by_id["train/dog"].modalities == ("audio", "image", "text")
    assert by_id["train/dog"].texts == ("a dog", "it barks")
    first = by_id["test/heavy_rain/1"]
    assert (first.texts, first.label, first.group, first.split) == (("heavy rain",), "heavy rain", "heavy rain", "test")


def test_hf_parquet_with_a_chosen_caption_column(tmp_path):
    hf_parquet(tmp_path)
    converted, _ = convert_copy(tmp_path, "hf", text="said")
    assert [(row.texts, row.split) for row in converted.rows] == [
        (("one",), "train"),
        (("two",), "train"),
        (("one",), "valid"),
        (("two",), "valid"),
    ]
    # the same bytes in two splits are one file, and the check says so
    assert {problem.category for problem in converted.problems} == {"same file"}
    with pytest.raises(UsageError, match="has no such column; found: audio, said, speaker"):
        convert_copy(tmp_path, "hf", text="caption")


def test_hf_writes_each_image_once_and_names_labels(tmp_path):
    REPLICAS["hf"](tmp_path)
    converted, _ = convert_copy(tmp_path, "hf")
    assert [row.label for row in converted.rows] == ["cat", "dog", "dog"] * 2
    train = [row for row in converted.rows if row.split == "train"]
    assert train[0].image == train[1].image
    assert train[0].group == train[1].group != train[2].group
    assert train[0].id == "train-0000001"
    assert len(list((tmp_path / "manifest_files").iterdir())) == 5


def test_the_test_hash_depends_on_captions_and_bytes_not_on_the_path(tmp_path):
    for name in ("one", "two"):
        REPLICAS["flickr8k"](tmp_path / name)
    first = convert_copy(tmp_path / "one", "flickr8k")[1]["test"]["test"]
    assert first == convert_copy(tmp_path / "two", "flickr8k")[1]["test"]["test"]
    write_file(tmp_path / "two/Flicker8k_Dataset/4_d.jpg", "other")
    changed = convert_copy(tmp_path / "two", "flickr8k")[1]["test"]["test"]
    assert changed["rows_hash"] == first["rows_hash"]
    assert changed["files_hash"] != first["files_hash"]
    tokens = tmp_path / "one/Flickr8k_text/Flickr8k.token.txt"
    tokens.write_text(tokens.read_text().replace("4_d.jpg#0\tA dog", "4_d.jpg#0\tA cat"))
    changed = convert_copy(tmp_path / "one", "flickr8k")[1]["test"]["test"]
    assert changed["rows_hash"] != first["rows_hash"]
    assert changed["files_hash"] == first["files_hash"]


def test_default_output_and_relative_paths(tmp_path):
    root = tmp_path / "copy"
    REPLICAS["gcompris"](root)
    written, _ = convert("gcompris", SOURCES["gcompris"], root, tmp_path / "above.jsonl", show_progress=False)
    assert not written.needs_allow_outside
    assert json.loads(written.path.read_text().splitlines()[0])["image"] == "copy/images/orange_fruit.jpg"
    written, _ = convert("gcompris", SOURCES["gcompris"], root, tmp_path / "beside/m.csv", show_progress=False)
    assert written.needs_allow_outside
    assert manifest.read(written.path).rows == ()
    assert len(manifest.read(written.path, allow_outside=True).rows) == 5
    root.chmod(0o555)  # read-only on purpose, even for those who could write there
    assert default_output_path("gcompris", SOURCES["gcompris"], root) == Path("gcompris/manifest.csv")
    root.chmod(0o755)


def test_foreign_files_are_never_overwritten(tmp_path):
    REPLICAS["gcompris"](tmp_path)
    before = (tmp_path / "meta.csv").read_bytes()
    with pytest.raises(UsageError, match="was not written by"):
        convert_copy(tmp_path, "gcompris", tmp_path / "meta.csv")
    assert (tmp_path / "meta.csv").read_bytes() == before
    with pytest.raises(UsageError, match="the suffix of a manifest must be one of"):
        convert_copy(tmp_path, "gcompris", tmp_path / "meta.txt")


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


def test_captions_round_trip_through_csv(tmp_path):
    lines = ["[music] plays", '["a", "list"]', 'says "hi", twice', "ein Vögelchen 🐦"]
    for number, line in enumerate(lines):
        write_file(tmp_path / f"{number}.wav", WAV)
        write_file(tmp_path / f"{number}.txt", line)
    converted, _ = convert_copy(tmp_path, "folder")
    assert [row.texts[0] for row in converted.rows] == lines
    write_file(tmp_path / "0.txt", "long " * 40_000)
    with pytest.raises(ManifestError, match=r"too long for CSV; write \.jsonl instead"):
        convert_copy(tmp_path, "folder", tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()
    assert len(convert_copy(tmp_path, "folder", tmp_path / "m.jsonl")[0].rows[0].texts[0]) > 131_072


def test_connected_groups_are_transitive_and_separated_by_split():
    assert find_connected_groups({"a": [1], "b": [2], "c": [1, 2], "d": [3]}) == {
        "a": "a",
        "b": "a",
        "c": "a",
        "d": "d",
    }
    items = [
        DraftItem("1", group="g", split="train"),
        DraftItem("2", group="g", split="test"),
        DraftItem("3", group="h", split="test"),
    ]
    assert [item.group for item in separate_groups_by_split(items)] == ["g (train)", "g (test)", "h"]


def test_hashed_splits_are_even_and_fixed():
    splits = [split_by_hash("any", str(number)) for number in range(5000)]
    assert abs(splits.count("test") / 5000 - 0.2) < 0.02
    assert abs(splits.count("valid") / 5000 - 0.1) < 0.02
    # fixed for ever: manifests made today and tomorrow must agree
    assert [split_by_hash("gcompris", word) for word in ("dog", "sea", "coin", "apple")] == [
        "train",
        "test",
        "train",
        "test",
    ]
