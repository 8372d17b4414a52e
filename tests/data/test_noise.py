"""Damage is exact, nobody keeps its own, and the list of swaps is the truth about the table."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data.noise import Kind, Swap, apply, read_swaps, similar, swap, write_swaps
from triptych.errors import UsageError

LABELS = st.lists(st.sampled_from("abcd"), min_size=2, max_size=60)


def names(labels: list[str]) -> list[str]:
    return [f"row{place}" for place in range(len(labels))]


@given(LABELS, st.floats(0, 1), st.integers(0, 2**32))
def test_random_swaps_are_exact_in_number_and_nobody_keeps_its_own(labels, share, seed):
    swaps = swap(names(labels), labels, share, "random", seed)
    assert len(swaps) == round(share * len(labels))
    assert len({item.id for item in swaps}) == len(swaps)
    assert all(item.id != item.taken_from for item in swaps)
    if len(swaps) > 1:  # content is passed on, never copied
        assert {item.id for item in swaps} == {item.taken_from for item in swaps}


@given(LABELS, st.floats(0, 1), st.integers(0, 2**32))
def test_category_swaps_stay_in_the_category(labels, share, seed):
    ids = names(labels)
    label_of, sizes = dict(zip(ids, labels, strict=True)), Counter(labels)
    able = sum(size for size in sizes.values() if size > 1)
    if round(share * len(ids)) > able:
        with pytest.raises(UsageError, match=f"only {able} have a partner.*alone in their category"):
            swap(ids, labels, share, "category", seed)
        return
    swaps = swap(ids, labels, share, "category", seed)
    assert len({item.id for item in swaps}) == len(swaps) == round(share * len(ids))
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
def test_nobody_takes_from_its_own_group(groups, share, seed):
    ids = names(groups)
    group_of = dict(zip(ids, groups, strict=True))
    try:
        swaps = swap(ids, groups, share, "random", seed, groups=groups)
    except UsageError as error:
        assert "are of one group" in str(error)  # noqa: PT017 - which chosen rows make it impossible, the seed decides
        return
    assert len({item.id for item in swaps}) == len(swaps) == round(share * len(ids))
    assert {item.id for item in swaps} == {item.taken_from for item in swaps} or len(swaps) == 1
    assert all(group_of[item.id] != group_of[item.taken_from] for item in swaps)


def test_what_leaves_no_other_group_is_refused():
    with pytest.raises(UsageError, match=r"3 of 4 rows .* are of one group \('a'\)"):
        swap(names(["a"] * 3 + ["b"]), [""] * 4, 1, "random", 0, groups=["a", "a", "a", "b"])


@given(st.integers(4, 80), st.integers(2, 12), st.integers(0, 2**32))
def test_every_row_is_in_the_cluster_whose_mean_is_closest(count, size, seed):
    vectors = np.random.default_rng(seed).normal(size=(count, 5)) * 7
    labels = similar(vectors, seed, size)
    assert labels == similar(vectors, seed, size)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    means = {label: unit[[own == label for own in labels]].sum(axis=0) for label in set(labels)}
    assert 1 <= len(means) <= max(1, round(count / size))
    for row, label in zip(unit, labels, strict=True):
        scores = {name: row @ mean / np.linalg.norm(mean) for name, mean in means.items()}
        assert scores[label] >= max(scores.values()) - 1e-9


def test_the_seed_decides():
    labels = ["a"] * 50
    first = swap(names(labels), labels, 0.4, "random", 1)
    assert first == swap(names(labels), labels, 0.4, "random", 1)
    assert first != swap(names(labels), labels, 0.4, "random", 2)


@given(LABELS, st.floats(0, 1), st.sampled_from(["image", "audio", "text"]))
def test_apply_changes_the_named_columns_of_the_named_rows_only(labels, share, modality):
    ids = names(labels)
    rows = [{"id": name, **{c: f"{c} of {name}" for c in ("image", "audio", "caption_1", "caption_2")}} for name in ids]
    before = [dict(row) for row in rows]
    swaps = swap(ids, labels, share, "random", 3, modality)
    donors = {item.id: item.taken_from for item in swaps}
    touched = {"image": ["image"], "audio": ["audio"], "text": ["caption_1", "caption_2"]}[modality]
    after = apply(rows, swaps)
    assert rows == before
    for row in after:
        for column in ("image", "audio", "caption_1", "caption_2"):
            owner = donors.get(row["id"], row["id"]) if column in touched else row["id"]
            assert row[column] == f"{column} of {owner}"


def test_swaps_survive_the_file(tmp_path):
    swaps = [Swap("a", "text", "b"), Swap("b", "text", "a")]
    write_swaps(tmp_path / "swaps.csv", swaps)
    assert (tmp_path / "swaps.csv").read_text() == "id,modality,taken_from\na,text,b\nb,text,a\n"
    assert read_swaps(tmp_path / "swaps.csv") == swaps


@pytest.mark.parametrize("share", [-0.1, 1.01, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(UsageError, match=f"noise share is {share}; allowed: 0 to 1"):
        swap(["a", "b"], ["x", "x"], share, "random", 0)


def test_what_cannot_be_swapped_is_refused():
    kind: Kind = "categry"  # pyright: ignore[reportAssignmentType]
    with pytest.raises(UsageError, match="did you mean 'category'"):
        swap(["a", "b"], ["x", "x"], 0.5, kind, 0)
    with pytest.raises(UsageError, match="2 ids and 1 labels"):
        swap(["a", "b"], ["x"], 0.5, "random", 0)
    with pytest.raises(UsageError, match="1 of 2 ids occur twice"):
        swap(["a", "a"], ["x", "x"], 0.5, "random", 0)
    with pytest.raises(UsageError, match="only 0 have a partner"):
        swap(["a"], ["x"], 1, "random", 0)
    with pytest.raises(UsageError, match="no such row"):
        apply([{"id": "a", "caption": "x"}], [Swap("a", "text", "b")])
    with pytest.raises(UsageError, match="no audio column"):
        apply([{"id": "a", "caption": "x"}, {"id": "b", "caption": "y"}], [Swap("a", "audio", "b")])
