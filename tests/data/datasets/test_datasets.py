"""All sources on small replicas of their datasets."""

import json
from pathlib import Path

import pytest

from tests.data.dataset_replicas import REPLICAS, write_file
from tests.data.datasets.conversion import comparable_rows, convert_copy
from triptych.data.datasets import DATASETS
from triptych.data.datasets.manifest_writer import sidecar_path
from triptych.errors import ManifestError


@pytest.fixture(params=DATASETS)
def copy(request, tmp_path) -> tuple[str, Path]:
    """Return the name of a source, and a replica of its dataset."""
    root = tmp_path / "copy"
    REPLICAS[request.param](root)
    return request.param, root


def test_every_source_gives_a_manifest_without_problems(copy):
    source, root = copy
    converted, summary = convert_copy(root, source)
    assert converted.path == (root.parent / "copy-manifest.csv" if source == "folder" else root / "manifest.csv")
    assert converted.problems == ()
    assert summary["rows"] == len(converted.rows) > 0
    assert json.loads(sidecar_path(converted.path).read_text())["licence"] == DATASETS[source].licence
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
