"""Naming by prompts: against loops, with ties and ensembles, and on a space that knows the answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.app.test_cli import triptych
from tests.similarities.test_similarities import features
from triptych.checkpoint import load
from triptych.contracts import Source
from triptych.data import manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.classification import judge
from triptych.evaluation.significance import intervals
from triptych.evaluation.zero_shot import class_scores, classify


@pytest.fixture(scope="module")
def space(run):
    return load(run)


@pytest.fixture
def rows(world):
    return manifest.read(world).rows


@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.integers(0, 999))
def test_shares_follow_their_definition(labels, seed):
    names = list("abcdefgh")
    scores = torch.randint(0, 6, (len(labels), 8), generator=torch.Generator().manual_seed(seed)).double()
    found = judge("audio", "", names, scores, torch.tensor(labels))
    right = top = 0
    each = {}
    for row, own in zip(scores.tolist(), labels, strict=True):
        beaten = sum(row[own] > other for c, other in enumerate(row) if c != own)
        right += beaten == 7
        top += beaten >= 3
        each.setdefault(names[own], []).append(beaten == 7)
    assert found.accuracy == pytest.approx(right / len(labels))
    assert found.top5 == pytest.approx(top / len(labels))
    assert {r.label: (r.right, r.items) for r in found.classes} == {n: (sum(x), len(x)) for n, x in each.items()}
    assert found.balanced == pytest.approx(sum(sum(x) / len(x) for x in each.values()) / len(each))
    assert found.largest == max(map(len, each.values())) / len(labels)
    for result in found.classes:
        assert (result.confused is None) == (result.right == result.items)
        assert result.confused != result.label


def test_the_usual_confusion_is_named():
    scores = torch.tensor([[0.0, 2, 1], [0, 1, 2], [0, 1, 2], [0, 3, 0]])
    found = judge("image", "", ["cat", "dog", "cow"], scores, torch.tensor([0, 0, 0, 1]))
    assert [(r.label, r.right, r.confused) for r in found.classes] == [("cat", 0, "cow"), ("dog", 1, None)]


def test_a_collapsed_space_names_nothing():
    assert judge("audio", "", ["a", "b"], torch.zeros(10, 2), torch.arange(10) % 2).accuracy == 0


@pytest.mark.parametrize("block", [1, 3, 256])
def test_an_ensemble_is_the_mean_over_prompts(space, block):
    items, prompts = features(7), features(6, seed=1)  # two prompts for three classes
    found = class_scores(space, items, "audio", prompts, 3, block)
    each = space.scores(items, "audio", prompts, "text")
    for i in range(7):
        for c in range(3):
            assert found[i, c].item() == pytest.approx((each[i, c] + each[i, 3 + c]).item() / 2)


def test_scores_are_those_of_the_space_prompt_by_prompt(space, rows):
    some = rows[:12]
    result = classify(space, some, ["the {}", "a {} here"], modalities=["image"], show=False)
    classes = sorted({row.label for row in some})
    right = 0
    for row in some:
        picture = space.embed_one(Source("image", row.image))
        best = {}
        for name in classes:
            said = [space.embed_one(Source("text", t)) for t in (f"the {name}", f"a {name} here")]
            best[name] = sum(space.scores(picture, "image", text, "text").item() for text in said)
        right += max(best, key=best.__getitem__) == row.label
    assert result.found[0].accuracy == pytest.approx(right / 12)


def test_every_modality_but_text_is_classified_each_file_once(space, rows):
    found = classify(space, [*rows, *rows], show=False).found
    assert [(c.modality, c.items) for c in found] == [("image", len(rows)), ("audio", len(rows))]


def test_choosing_among_more_classes_lowers_chance(space, rows):
    few = [row for row in rows if row.label in sorted({r.label for r in rows})[:2]]
    everything = [*{row.label for row in rows}, "never_heard"]
    assert classify(space, few, show=False).found[0].chance == 1 / 2
    assert classify(space, few, among=everything, show=False).found[0].chance == 1 / len(everything)


def test_mistakes_are_named(space, rows):
    with pytest.raises(UsageError, match=r"has no \{\} for the name of a class"):
        classify(space, rows, ["a sound"], show=False)
    with pytest.raises(ManifestError, match="give rows a label, two at least"):
        classify(space, [replace(row, label=None) for row in rows], show=False)
    with pytest.raises(ManifestError, match=r"labelled 'x' and \(row 2\) 'y'"):
        classify(space, [replace(rows[0], label="x"), replace(rows[0], label="y")], show=False)
    with pytest.raises(UsageError, match="not among the classes"):
        classify(space, rows, among=["x", "y"], show=False)
    with pytest.raises(UsageError, match="image cannot be classified here; what can: audio"):
        classify(space, [replace(row, image=None) for row in rows], modalities=["image"], show=False)


def test_the_interval_is_that_of_every_other_figure():
    scores, label = torch.eye(4)[torch.arange(40) % 4], torch.arange(40) % 4
    scores[:12] = 0  # tied, so wrong
    found = judge("audio", "prompts", list("abcd"), scores, label)
    right = (np.arange(40) >= 12).astype(float)
    assert found.interval == intervals(right, np.arange(40), [(0.0, 1.0)])[0]
    assert found.interval.low < found.accuracy == 28 / 40 < found.interval.high
    none = judge("audio", "prompts", list("abcd"), torch.zeros(40, 4), label)
    assert none.accuracy == none.interval.low == 0 < none.interval.high  # to have seen none right is no proof


@pytest.mark.slow
def test_the_command_prints_shares_and_chance(run, world):
    result = triptych("classify", run, "--data", world, "--split", "all", "--prompt", "one {}", "--of", "sounds")
    assert result.returncode == 0, result.stderr
    assert "audio:" in result.stdout
    assert "image:" not in result.stdout
    assert "chance" in result.stdout
    wrong = triptych("classify", run, "--data", world, "--prompt", "no gap")
    assert wrong.returncode == 2
    assert "has no {}" in wrong.stderr
