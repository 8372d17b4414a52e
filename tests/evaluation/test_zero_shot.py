"""Naming by prompts: against loops, with ties and ensembles, and on a space that knows the answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.app.test_cli import triptych
from tests.similarities.test_similarities import random_features
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.classification import measure_accuracy
from triptych.evaluation.significance import bootstrap_intervals
from triptych.evaluation.zero_shot import classify, score_classes
from triptych.interfaces import Source


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


@pytest.fixture
def rows(synthetic_manifest):
    return manifest.read(synthetic_manifest).rows


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(0, 999))
def test_accuracies_match_their_definition(labels, seed):
    names = list("abcdefgh")
    scores = torch.randint(0, 6, (len(labels), 8), generator=torch.Generator().manual_seed(seed)).double()
    classification = measure_accuracy("audio", "", names, scores, torch.tensor(labels))
    num_correct = num_top5 = 0
    each = {}
    for row, label in zip(scores.tolist(), labels, strict=True):
        beaten = sum(row[label] > other for c, other in enumerate(row) if c != label)
        num_correct += beaten == 7
        num_top5 += beaten >= 3
        each.setdefault(names[label], []).append(beaten == 7)
    assert classification.accuracy == pytest.approx(num_correct / len(labels))
    assert classification.top5_accuracy == pytest.approx(num_top5 / len(labels))
    assert {r.label: (r.num_correct, r.num_items) for r in classification.classes} == {
        n: (sum(x), len(x)) for n, x in each.items()
    }
    assert classification.balanced_accuracy == pytest.approx(sum(sum(x) / len(x) for x in each.values()) / len(each))
    assert classification.majority_baseline == max(map(len, each.values())) / len(labels)
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


@pytest.mark.parametrize("block_size", [1, 3, 256])
def test_an_ensemble_is_the_mean_over_prompts(space, block_size):
    items = replace(random_features(7), modality="audio")
    prompts = replace(random_features(6, seed=1), modality="text")  # two prompts for three classes
    scores = score_classes(space, items, prompts, 3, block_size)
    prompt_scores = space.scores(items, prompts)
    for i in range(7):
        for c in range(3):
            assert scores[i, c].item() == pytest.approx((prompt_scores[i, c] + prompt_scores[i, 3 + c]).item() / 2)


def test_scores_match_the_space_prompt_by_prompt(space, rows):
    subset = rows[:12]
    result = classify(space, subset, ["the {}", "a {} here"], modalities=["image"], show_progress=False)
    classes = sorted({row.label for row in subset})
    num_correct = 0
    for row in subset:
        image = space.embed_one(Source("image", row.image))
        best = {}
        for name in classes:
            prompts = [space.embed_one(Source("text", t)) for t in (f"the {name}", f"a {name} here")]
            best[name] = sum(space.scores(image, text).item() for text in prompts)
        num_correct += max(best, key=best.__getitem__) == row.label
    assert result.results[0].accuracy == pytest.approx(num_correct / 12)


def test_every_modality_but_text_is_classified_each_file_once(space, rows):
    results = classify(space, [*rows, *rows], show_progress=False).results
    assert [(c.modality, c.num_items) for c in results] == [("image", len(rows)), ("audio", len(rows))]


def test_more_candidate_classes_lower_the_chance_level(space, rows):
    few = [row for row in rows if row.label in sorted({r.label for r in rows})[:2]]
    everything = [*{row.label for row in rows}, "never_heard"]
    assert classify(space, few, show_progress=False).results[0].chance_level == 1 / 2
    assert classify(space, few, candidate_classes=everything, show_progress=False).results[0].chance_level == 1 / len(
        everything
    )


def test_invalid_input_raises(space, rows):
    with pytest.raises(UsageError, match=r"has no \{\} for the class name"):
        classify(space, rows, ["a sound"], show_progress=False)
    with pytest.raises(ManifestError, match="give rows a label, two at least"):
        classify(space, [replace(row, label=None) for row in rows], show_progress=False)
    with pytest.raises(ManifestError, match=r"labelled 'x' and \(row 2\) 'y'"):
        classify(space, [replace(rows[0], label="x"), replace(rows[0], label="y")], show_progress=False)
    with pytest.raises(UsageError, match="not among the classes"):
        classify(space, rows, candidate_classes=["x", "y"], show_progress=False)
    with pytest.raises(UsageError, match="image cannot be classified; available: audio"):
        classify(space, [replace(row, image=None) for row in rows], modalities=["image"], show_progress=False)


def test_the_interval_is_a_bootstrap_interval():
    scores, label = torch.eye(4)[torch.arange(40) % 4], torch.arange(40) % 4
    scores[:12] = 0  # tied, so wrong
    result = measure_accuracy("audio", "prompts", list("abcd"), scores, label)
    is_correct = (np.arange(40) >= 12).astype(float)
    assert result.interval == bootstrap_intervals(is_correct, np.arange(40), [(0.0, 1.0)])[0]
    assert result.interval.low < result.accuracy == 28 / 40 < result.interval.high
    all_wrong = measure_accuracy("audio", "prompts", list("abcd"), torch.zeros(40, 4), label)
    assert (
        all_wrong.accuracy == all_wrong.interval.low == 0 < all_wrong.interval.high
    )  # to have seen none right is no proof


@pytest.mark.slow
def test_classify_command_prints_accuracy_and_chance_level(run_dir, synthetic_manifest):
    result = triptych(
        "classify", run_dir, "--data", synthetic_manifest, "--split", "all", "--prompt", "one {}", "--modality", "audio"
    )
    assert result.returncode == 0, result.stderr
    assert "audio:" in result.stdout
    assert "image:" not in result.stdout
    assert "chance" in result.stdout
    wrong = triptych("classify", run_dir, "--data", synthetic_manifest, "--prompt", "no gap")
    assert wrong.returncode == 2
    assert "has no {}" in wrong.stderr
