"""Groups and hash splits of draft items."""

from collections import Counter

import pytest

from triptych.data.datasets.draft import DraftItem
from triptych.data.datasets.splits import (
    assign_hash_splits,
    find_connected_groups,
    separate_groups_by_split,
    split_by_hash,
)


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
    # These values must never change: manifests written by all versions must agree.
    assert [split_by_hash("gcompris", word) for word in ("dog", "sea", "coin", "apple")] == [
        "train",
        "test",
        "train",
        "test",
    ]


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
