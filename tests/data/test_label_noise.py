"""Swaps: exact numbers, donors of other rows and groups, clusters, and the list of swaps."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data.label_noise import (
    Swap,
    SwapKind,
    apply_swaps,
    choose_swaps,
    cluster_by_similarity,
    read_swaps,
    take_columns,
    write_swaps,
)
from triptych.errors import UsageError

LABELS = st.lists(st.sampled_from("abcd"), min_size=2, max_size=60)


def row_ids(labels: list[str]) -> list[str]:
    return [f"row{index}" for index in range(len(labels))]


@given(LABELS, st.floats(0, 1), st.integers(0, 2**32))
def test_random_swaps_are_exact_in_number_and_no_row_keeps_its_content(labels, noise_rate, seed):
    swaps = choose_swaps(row_ids(labels), labels, noise_rate, "random", seed)
    assert len(swaps) == round(noise_rate * len(labels))
    assert len({item.id for item in swaps}) == len(swaps)
    assert all(item.id != item.taken_from for item in swaps)
    if len(swaps) > 1:  # content is passed on, never copied
        assert {item.id for item in swaps} == {item.taken_from for item in swaps}


@given(LABELS, st.floats(0, 1), st.integers(0, 2**32))
def test_category_swaps_stay_in_the_category(labels, noise_rate, seed):
    ids = row_ids(labels)
    label_of, sizes = dict(zip(ids, labels, strict=True)), Counter(labels)
    eligible = sum(size for size in sizes.values() if size > 1)
    if round(noise_rate * len(ids)) > eligible:
        with pytest.raises(UsageError, match=f"only {eligible} rows have a donor.*the only row of its category"):
            choose_swaps(ids, labels, noise_rate, "category", seed)
        return
    swaps = choose_swaps(ids, labels, noise_rate, "category", seed)
    assert len({item.id for item in swaps}) == len(swaps) == round(noise_rate * len(ids))
    chosen = Counter(label_of[item.id] for item in swaps)
    for item in swaps:
        assert item.id != item.taken_from
        assert label_of[item.id] == label_of[item.taken_from]
    for label, count in chosen.items():
        donors = [item.taken_from for item in swaps if label_of[item.id] == label]
        assert len(set(donors)) == count
        if count > 1:
            assert set(donors) == {item.id for item in swaps if label_of[item.id] == label}


@given(st.lists(st.sampled_from("abcdefgh"), min_size=8, max_size=60), st.floats(0, 1), st.integers(0, 2**32))
def test_no_row_takes_from_its_own_group(groups, noise_rate, seed):
    ids = row_ids(groups)
    group_of = dict(zip(ids, groups, strict=True))
    try:
        swaps = choose_swaps(ids, groups, noise_rate, "random", seed, groups=groups)
    except UsageError as error:
        assert "are of one group" in str(error)  # noqa: PT017 - the seed decides whether this case occurs
        return
    assert len({item.id for item in swaps}) == len(swaps) == round(noise_rate * len(ids))
    assert {item.id for item in swaps} == {item.taken_from for item in swaps} or len(swaps) == 1
    assert all(group_of[item.id] != group_of[item.taken_from] for item in swaps)


def test_rows_of_a_single_group_raise():
    with pytest.raises(UsageError, match=r"3 of 4 rows .* are of one group \('a'\)"):
        choose_swaps(row_ids(["a"] * 3 + ["b"]), [""] * 4, 1, "random", 0, groups=["a", "a", "a", "b"])


@given(st.integers(4, 80), st.integers(2, 12), st.integers(0, 2**32))
def test_every_row_is_in_the_cluster_whose_mean_is_closest(count, size, seed):
    vectors = np.random.default_rng(seed).normal(size=(count, 5)) * 7
    labels = cluster_by_similarity(vectors, seed, size)
    assert labels == cluster_by_similarity(vectors, seed, size)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    means = {label: unit[[row_label == label for row_label in labels]].sum(axis=0) for label in set(labels)}
    assert 1 <= len(means) <= max(1, round(count / size))
    for row, label in zip(unit, labels, strict=True):
        scores = {name: row @ mean / np.linalg.norm(mean) for name, mean in means.items()}
        assert scores[label] >= max(scores.values()) - 1e-9


def test_the_seed_decides():
    labels = ["a"] * 50
    first = choose_swaps(row_ids(labels), labels, 0.4, "random", 1)
    assert first == choose_swaps(row_ids(labels), labels, 0.4, "random", 1)
    assert first != choose_swaps(row_ids(labels), labels, 0.4, "random", 2)


@given(LABELS, st.floats(0, 1), st.sampled_from(["image", "audio", "text"]))
def test_apply_swaps_changes_only_the_listed_columns_and_rows(labels, noise_rate, modality):
    ids = row_ids(labels)
    rows = [{"id": name, **{c: f"{c} of {name}" for c in ("image", "audio", "caption_1", "caption_2")}} for name in ids]
    before = [dict(row) for row in rows]
    swaps = choose_swaps(ids, labels, noise_rate, "random", 3, modality)
    donors = {item.id: item.taken_from for item in swaps}
    touched = {"image": ["image"], "audio": ["audio"], "text": ["caption_1", "caption_2"]}[modality]
    after = apply_swaps({row["id"]: row for row in rows}, swaps, take_columns)
    assert rows == before
    for row in after:
        for column in ("image", "audio", "caption_1", "caption_2"):
            owner = donors.get(row["id"], row["id"]) if column in touched else row["id"]
            assert row[column] == f"{column} of {owner}"


def test_swaps_round_trip_through_csv(tmp_path):
    swaps = [Swap("a", "text", "b"), Swap("b", "text", "a")]
    write_swaps(tmp_path / "swaps.csv", swaps)
    assert (tmp_path / "swaps.csv").read_text() == "id,modality,taken_from\na,text,b\nb,text,a\n"
    assert read_swaps(tmp_path / "swaps.csv") == swaps


@pytest.mark.parametrize("noise_rate", [-0.1, 1.01, float("nan")])
def test_a_noise_rate_outside_0_to_1_raises(noise_rate):
    with pytest.raises(UsageError, match=f"noise rate is {noise_rate}; allowed: 0 to 1"):
        choose_swaps(["a", "b"], ["x", "x"], noise_rate, "random", 0)


def test_invalid_swaps_raise():
    noise_kind: SwapKind = "categry"  # pyright: ignore[reportAssignmentType]
    with pytest.raises(UsageError, match="did you mean 'category'"):
        choose_swaps(["a", "b"], ["x", "x"], 0.5, noise_kind, 0)
    with pytest.raises(UsageError, match="2 ids and 1 labels"):
        choose_swaps(["a", "b"], ["x"], 0.5, "random", 0)
    with pytest.raises(UsageError, match="1 of 2 ids repeat an earlier id"):
        choose_swaps(["a", "a"], ["x", "x"], 0.5, "random", 0)
    with pytest.raises(UsageError, match="only 0 rows have a donor"):
        choose_swaps(["a"], ["x"], 1, "random", 0)
    with pytest.raises(UsageError, match="no such row"):
        apply_swaps({"a": {"caption": "x"}}, [Swap("a", "text", "b")], take_columns)
    with pytest.raises(UsageError, match="no audio column"):
        apply_swaps({"a": {"caption": "x"}, "b": {"caption": "y"}}, [Swap("a", "audio", "b")], take_columns)
