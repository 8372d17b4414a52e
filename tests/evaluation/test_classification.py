"""Accuracies against loops, with ties; the most frequent confusion and the interval."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.evaluation.classification import measure_accuracy
from triptych.evaluation.significance import bootstrap_intervals


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(0, 999))
def test_accuracies_match_their_definition(labels, seed):
    names = list("abcdefgh")
    scores = torch.randint(0, 6, (len(labels), 8), generator=torch.Generator().manual_seed(seed)).double()
    classification = measure_accuracy("audio", "", names, scores, torch.tensor(labels))
    num_correct = num_top5 = 0
    by_class = {}
    for row, label in zip(scores.tolist(), labels, strict=True):
        beaten = sum(row[label] > other for c, other in enumerate(row) if c != label)
        num_correct += beaten == 7
        num_top5 += beaten >= 3
        by_class.setdefault(names[label], []).append(beaten == 7)
    assert classification.accuracy == pytest.approx(num_correct / len(labels))
    assert classification.top5_accuracy == pytest.approx(num_top5 / len(labels))
    assert {r.label: (r.num_correct, r.num_items) for r in classification.classes} == {
        n: (sum(x), len(x)) for n, x in by_class.items()
    }
    assert classification.balanced_accuracy == pytest.approx(
        sum(sum(x) / len(x) for x in by_class.values()) / len(by_class)
    )
    assert classification.majority_baseline == max(map(len, by_class.values())) / len(labels)
    for result in classification.classes:
        assert (result.most_confused_with is None) == (result.num_correct == result.num_items)
        assert result.most_confused_with != result.label


def test_the_most_frequent_confusion_is_reported():
    scores = torch.tensor([[0.0, 2, 1], [0, 1, 2], [0, 1, 2], [0, 3, 0]])
    result = measure_accuracy("image", "", ["cat", "dog", "cow"], scores, torch.tensor([0, 0, 0, 1]))
    assert [(r.label, r.num_correct, r.most_confused_with) for r in result.classes] == [
        ("cat", 0, "cow"),
        ("dog", 1, None),
    ]


def test_a_collapsed_space_has_zero_accuracy():
    assert measure_accuracy("audio", "", ["a", "b"], torch.zeros(10, 2), torch.arange(10) % 2).accuracy == 0


def test_the_interval_is_a_bootstrap_interval():
    scores, label = torch.eye(4)[torch.arange(40) % 4], torch.arange(40) % 4
    scores[:12] = 0  # ties count as errors
    result = measure_accuracy("audio", "prompts", list("abcd"), scores, label)
    is_correct = (np.arange(40) >= 12).astype(float)
    assert result.interval == bootstrap_intervals(is_correct, np.arange(40), [(0.0, 1.0)])[0]
    assert result.interval.low < result.accuracy == 28 / 40 < result.interval.high
    all_wrong = measure_accuracy("audio", "prompts", list("abcd"), torch.zeros(40, 4), label)
    assert all_wrong.accuracy == all_wrong.interval.low == 0 < all_wrong.interval.high
