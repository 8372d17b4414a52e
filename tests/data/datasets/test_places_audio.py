"""Places Audio Captions: JSON and text layout."""

from tests.data.dataset_replicas import REPLICAS, write_file
from tests.data.datasets.conversion import comparable_rows, convert_copy


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
