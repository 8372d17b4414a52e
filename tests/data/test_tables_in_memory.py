"""Rows of pandas, polars and Arrow tables, of Hugging Face datasets, and of iterables."""

import doctest
from importlib import import_module

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.dataset_replicas import png_bytes
from triptych.data import tables_in_memory
from triptych.data.tables_in_memory import is_hf_data, is_manifest_path, iter_rows
from triptych.errors import ManifestError, UsageError

ROWS = [{"audio": f"{i}.wav", "text": f"clip {i}", "start": None if i else 0.5} for i in range(3)]


def import_optional(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def make_dataset(count=4):
    """Images with captions in columns that have other names than in a manifest."""
    datasets = import_optional("datasets")
    features = {"img": datasets.Image(), "caption": datasets.Value("string")}
    features |= {"label": datasets.ClassLabel(names=["cat", "dog"]), "number": datasets.Value("int64")}
    columns = {
        "img": [{"bytes": png_bytes(i), "path": None} for i in range(count)],
        "caption": [f"image {i}" for i in range(count)],
        "label": [i % 2 for i in range(count)],
        "number": list(range(count)),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_doctests():
    assert doctest.testmod(tables_in_memory).failed == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: tuple(ROWS),
        lambda: (row for row in ROWS),
        lambda: import_optional("pandas").DataFrame(ROWS),
        lambda: import_optional("pandas").DataFrame(ROWS).convert_dtypes(),
        lambda: import_optional("polars").DataFrame(ROWS),
        lambda: pyarrow.Table.from_pylist(ROWS),
        lambda: pyarrow.Table.from_pylist(ROWS).to_reader(),
        lambda: import_optional("datasets").Dataset.from_list(ROWS),
        lambda: import_optional("datasets").Dataset.from_list(ROWS).to_iterable_dataset(),
    ],
    ids=[
        "list",
        "tuple",
        "generator",
        "pandas",
        "nullable",
        "polars",
        "arrow",
        "reader",
        "datasets",
        "iterable dataset",
    ],
)
def test_all_tables_give_the_same_rows(make):
    assert list(iter_rows(make())) == ROWS


def test_splits_are_named_as_in_manifests():
    rows = list(iter_rows({"train": ROWS[:1], "validation": pyarrow.Table.from_pylist(ROWS[1:2]), "novel": ROWS[2:]}))
    assert [row.pop("split") for row in rows] == ["train", "valid", "novel"]
    assert rows == ROWS


def test_columns_of_a_dataset_get_their_roles():
    dataset = make_dataset()
    expected = {"img_file_name": {"bytes": png_bytes(1), "path": None}, "text": ["image 1"], "label": "dog"}
    assert list(iter_rows(dataset))[1] == expected
    assert next(iter_rows(dataset.select([3, 1]).select([1]))) == expected
    datasets = import_optional("datasets")
    rows = list(iter_rows(datasets.DatasetDict({"train": dataset, "test": dataset.select([0])})))
    assert [row["split"] for row in rows] == ["train"] * 4 + ["test"]


def test_a_dataset_on_the_hub_is_loaded_by_name(tmp_path, monkeypatch):
    datasets = import_optional("datasets")
    monkeypatch.setattr(import_module("datasets.config"), "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "local").mkdir()
    parquet.write_table(make_dataset().with_format("arrow")[:], tmp_path / "local" / "train-0.parquet")
    rows = list(iter_rows(f"hf:{tmp_path / 'local'}"))  # a folder is loaded like a name on the hub
    assert [(row["text"], row["split"]) for row in rows] == [([f"image {i}"], "train") for i in range(4)]
    assert datasets is not None
    with pytest.raises(UsageError, match=r"hf:.*missing cannot be loaded .*datasets\.load_dataset"):
        list(iter_rows(f"hf:{tmp_path / 'missing'}"))


def test_without_the_package_datasets_the_error_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'triptych\[datasets\]'"):
        list(iter_rows("hf:some/name"))


def raise_in_the_middle():
    yield ROWS[0]
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (raise_in_the_middle(), ManifestError, r"failed after 1 rows \(OSError: the disk is gone\)"),
        ([("a.wav", "text")], ManifestError, "data, row 1: tuple; need a dictionary"),
        ({"train": [1]}, ManifestError, r"data\['train'\], row 1: int; need a dictionary"),
        ({"audio": ["a.wav"], "text": ["a"]}, UsageError, "a dictionary of columns"),
        ({"train": "pairs.csv"}, UsageError, r"data\['train'\] is str; give a manifest, a table"),
        (None, UsageError, "data is NoneType; give a manifest, a table"),
        (7, UsageError, "data is int"),
        (b"bytes", UsageError, "data is bytes"),
    ],
)
def test_other_data_raises(data, error, message):
    with pytest.raises(error, match=message):
        list(iter_rows(data))


def test_duplicate_columns_of_pandas_raise():
    frame = import_optional("pandas").DataFrame([["a.wav", "a", "b"]], columns=["audio", "text", "text"])
    with pytest.raises(ManifestError, match="duplicate columns; the columns are audio, text, text"):
        list(iter_rows(frame))


def test_paths_are_told_from_data(tmp_path):
    assert is_manifest_path("pairs.csv")
    assert is_manifest_path(tmp_path)
    assert not is_manifest_path("hf:name")
    assert not is_manifest_path(ROWS)
    assert is_hf_data("hf:name")
    assert not is_hf_data(ROWS)
