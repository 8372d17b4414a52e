"""Files with the same bytes."""

import hashlib

from tests.data.dataset_replicas import write_file
from triptych.data.datasets.duplicates import PREFIX_BYTES, hash_identical_files


def test_only_files_with_equal_bytes_are_returned(tmp_path):
    prefix = bytes(PREFIX_BYTES)
    contents = {
        "a": prefix + b"1",
        "b": prefix + b"1",
        "same prefix": prefix + b"2",
        "same size": b"x" * len(prefix) + b"3",
    }
    paths = {name: write_file(tmp_path / name, content) for name, content in contents.items()}
    digest = hashlib.sha256(contents["a"]).hexdigest()
    missing = tmp_path / "missing"
    assert hash_identical_files([*paths.values(), missing]) == {paths["a"]: digest, paths["b"]: digest}
