"""Folds: rows that share a pair share a fold, folds are balanced; recipes are scaled to the number of rows."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.data.dataset_replicas import png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.auditing.folds import (
    MIN_BATCHES,
    MIN_STEPS,
    ModalityContents,
    collect_contents,
    collect_pairs,
    find_modality_pairs,
    group_kfold,
    scale_recipe,
)
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.interfaces import Modality
from triptych.recipe import Recipe


@given(st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=4, max_size=60), st.integers(2, 5))
def test_rows_that_share_a_pair_share_a_fold(pairs, num_folds):
    pairs_by_row = {f"r{i}": row_pairs for i, row_pairs in enumerate(pairs)}
    fold = group_kfold(pairs_by_row, num_folds, 0)
    assert fold == group_kfold(pairs_by_row, num_folds, 0)
    assert set(fold) == set(pairs_by_row)
    for (one, x), (other, y) in itertools.combinations(pairs_by_row.items(), 2):
        assert not set(x) & set(y) or fold[one] == fold[other]


def test_folds_are_balanced_and_seeded():
    pairs_by_row = {f"r{i}": [i] for i in range(101)}
    sizes = np.bincount(list(group_kfold(pairs_by_row, 4, 0).values()))
    assert sizes.max() - sizes.min() <= 1
    assert group_kfold(pairs_by_row, 4, 0) != group_kfold(pairs_by_row, 4, 1)


def test_duplicate_pairs_share_a_fold(tmp_path):
    for i in range(24):
        write_file(tmp_path / f"{i}.png", png_bytes(i // 2))
    rows = [{"id": f"r{i}", "image": f"{i}.png", "text": [f"number {i // 2}", f"{i}"]} for i in range(24)]
    read = manifest.read(write_manifest(tmp_path / "twice.jsonl", rows)).rows
    contents: dict[Modality, ModalityContents] = {
        m: collect_contents(read, m, Cache.default()) for m in ("image", "text")
    }
    fold = group_kfold(collect_pairs(contents, find_modality_pairs(contents, range(24)), read), 2, 0)
    assert set(fold.values()) == {0, 1}
    assert all(fold[f"r{i}"] == fold[f"r{i + 1}"] for i in range(0, 24, 2))


@given(st.integers(2, 20_000))
def test_small_manifests_get_small_batches_and_enough_steps(num_rows):
    training = scale_recipe(Recipe.load("audit"), num_rows).training
    assert training.batch_size == 2 or training.batch_size * MIN_BATCHES <= num_rows
    assert training.epochs * max(1, num_rows // training.batch_size) >= MIN_STEPS
