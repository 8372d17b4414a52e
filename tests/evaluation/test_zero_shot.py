"""Zero-shot classification: prompt ensembles against loops, candidate classes, invalid input."""

from dataclasses import replace

import pytest

from tests.similarities.test_similarities import random_features
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.zero_shot import classify, score_classes
from triptych.interfaces import Source


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


@pytest.fixture
def rows(synthetic_manifest):
    return manifest.read(synthetic_manifest).rows


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
    everything = [*{row.label for row in rows}, "unseen"]
    assert classify(space, few, show_progress=False).results[0].chance_level == 1 / 2
    assert classify(space, few, candidate_classes=everything, show_progress=False).results[0].chance_level == 1 / len(
        everything
    )


def test_invalid_input_raises(space, rows):
    with pytest.raises(UsageError, match=r"has no \{\} for the class name"):
        classify(space, rows, ["a sound"], show_progress=False)
    with pytest.raises(ManifestError, match="label the rows with at least two classes"):
        classify(space, [replace(row, label=None) for row in rows], show_progress=False)
    with pytest.raises(ManifestError, match=r"labelled 'x' in one row, but 'y' in row 2"):
        classify(space, [replace(rows[0], label="x"), replace(rows[0], label="y")], show_progress=False)
    with pytest.raises(UsageError, match="not among the candidate classes"):
        classify(space, rows, candidate_classes=["x", "y"], show_progress=False)
    with pytest.raises(UsageError, match="image cannot be classified; available modalities: audio"):
        classify(space, [replace(row, image=None) for row in rows], modalities=["image"], show_progress=False)
