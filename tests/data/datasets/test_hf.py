"""Hugging Face datasets: columns, labels, extracted files and limits."""

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.dataset_replicas import REPLICAS, WAV, hf_parquet
from tests.data.datasets.conversion import convert_copy
from triptych.data.datasets import archive
from triptych.errors import ManifestError, UsageError


def test_hf_parquet_with_a_chosen_caption_column(tmp_path):
    hf_parquet(tmp_path)
    converted, _ = convert_copy(tmp_path, "hf", text="said")
    assert [(row.texts, row.split) for row in converted.rows] == [
        (("one",), "train"),
        (("two",), "train"),
        (("one",), "valid"),
        (("two",), "valid"),
    ]
    # the same bytes in two splits are one file, which is reported as a problem
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


def test_content_far_larger_than_its_parquet_file_raises(tmp_path):
    cells = [{"bytes": WAV + bytes(archive.EXPANSION_ALLOWANCE // 2) + bytes([n]), "path": None} for n in range(3)]
    table = pyarrow.table({"audio": cells, "text": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "train-0.parquet", compression="zstd")
    with pytest.raises(ManifestError, match="100 times its size"):
        convert_copy(tmp_path, "hf")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train-0.parquet"]
