"""The linear probe: against its objective minimised by another optimiser, and on spaces and frozen features."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.loader import source_of
from triptych.encoders import ENCODERS
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.probe import (
    INVERSE_REGULARISATIONS,
    compute_frozen_features,
    make_classifier,
    probe,
    probe_space,
    select_inverse_regularisation,
)
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


def gaussian_classes(classes, each, feature_dim=6, seed=0):
    """Overlapping Gaussian classes, on axes of very different scales."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, feature_dim))
    label = np.repeat(np.arange(classes), each)
    return (centres[label] + rng.normal(size=(len(label), feature_dim))) * 10.0 ** np.arange(feature_dim), [
        f"c{i}" for i in label
    ]


@pytest.mark.parametrize("classes", [2, 4])
def test_probe_minimises_its_documented_objective(classes):
    (train_features, train_labels), (test_features, test_labels) = (
        gaussian_classes(classes, 30),
        gaussian_classes(classes, 25, seed=1),
    )
    result = probe("audio", train_features, train_labels, test_features, test_labels, inverse_regularisation=0.1)
    x = torch.from_numpy((train_features - train_features.mean(0)) / train_features.std(0))
    y = torch.tensor([int(name[1:]) for name in train_labels])
    weight = torch.zeros(classes, x.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14)

    def loss():
        optimizer.zero_grad()
        value = 0.1 * torch.nn.functional.cross_entropy(x @ weight.T + bias, y, reduction="sum")
        # For two classes scikit-learn has one weight vector w, not w/2 and -w/2.
        value = value + (weight.square().sum() / 2 if classes > 2 else (weight[1] - weight[0]).square().sum() / 2)
        value.backward()
        return value

    optimizer.step(loss)
    predicted = (
        (torch.from_numpy((test_features - train_features.mean(0)) / train_features.std(0))) @ weight.T + bias
    ).argmax(1)
    num_correct = sum(int(label[1:]) == int(n) for label, n in zip(test_labels, predicted, strict=True))
    assert result.accuracy == num_correct / len(test_labels)
    assert result.chance_level < result.accuracy < 1


def test_regularisation_is_selected_on_training_items_only():
    """With many noise features, a strong regularisation is better."""
    easy, labels = gaussian_classes(3, 40)
    rng = np.random.default_rng(0)
    noisy = np.column_stack([easy, rng.normal(size=(len(easy), 200))])
    num_correct = {s: cross_validated_correct(noisy, np.array(labels), s) for s in INVERSE_REGULARISATIONS}
    assert num_correct[select_inverse_regularisation(noisy, np.array(labels))] == max(num_correct.values())
    assert len(set(num_correct.values())) > 1


def cross_validated_correct(features, labels, inverse_regularisation):
    """By loops: every third item of a class is held out in turn."""
    counts, fold, num_correct = Counter(), [], 0
    for label in labels:
        fold.append(counts[label] % 3)
        counts[label] += 1
    for held_out in range(3):
        inside = [i for i, f in enumerate(fold) if f != held_out]
        outside = [i for i, f in enumerate(fold) if f == held_out]
        classifier = make_classifier(inverse_regularisation).fit(features[inside], labels[inside])
        num_correct += sum(classifier.predict(features[[i]])[0] == labels[i] for i in outside)
    return num_correct


def test_a_class_with_one_item_is_supported():
    x, names = gaussian_classes(3, 4)
    assert probe("audio", x[:9], names[:9], x, names).num_items == 12


def test_unseen_classes_raise():
    x, names = gaussian_classes(3, 4)
    with pytest.raises(UsageError, match="class 'bird' does not occur in the training rows"):
        probe("audio", x, names, x, [*names[:-1], "bird"])


def test_probe_space_fits_and_scores_on_different_rows(run_dir, synthetic_manifest):
    table = manifest.read(synthetic_manifest)
    train_rows, test_rows = table.rows[:60], table.rows[60:]
    space = load(run_dir)
    results = probe_space(space, train_rows, test_rows, show_progress=False).results
    assert [classification.modality for classification in results] == ["image", "audio"]
    embedded = [space.embed([source_of(row, "audio") for row in rows], "audio") for rows in (train_rows, test_rows)]
    x, y = (result.features.embedding.numpy() for result in embedded)
    train_labels, test_labels = ([str(row.label) for row in rows] for rows in (train_rows, test_rows))
    assert results[1] == probe("audio", x, train_labels, y, test_labels)
    with pytest.raises(UsageError, match="has no frozen features to probe"):
        probe_space(space, train_rows, test_rows, feature_source="features", show_progress=False)
    with pytest.raises(ManifestError, match="label the rows"):
        probe_space(space, [replace(row, label=None) for row in train_rows], test_rows, show_progress=False)


def test_frozen_features_are_mean_and_max_of_the_parts(tmp_path):
    if reason := ENCODERS["minilm"].unavailable_reason():
        pytest.skip(reason)
    encoder, source = ENCODERS["minilm"](), Source("text", "rain on a tin roof")
    features = compute_frozen_features(encoder, [source], Cache(tmp_path / "cache"))
    parts, mask = encoder(encoder.prepare(source)[None], torch.ones(1, len(encoder.prepare(source)), dtype=torch.bool))
    expected = torch.cat([parts[0][mask[0]].mean(0), parts[0][mask[0]].amax(0)])
    assert np.allclose(features.matrix[0], expected.detach().numpy(), atol=1e-5)
