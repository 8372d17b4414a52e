"""The linear probe: against the objective it states, minimised otherwise, and on spaces and frozen features."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.app.test_cli import triptych
from triptych.checkpoint import load
from triptych.contracts import Source
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.loader import source_of
from triptych.encoders import ENCODERS
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.probe import STRENGTHS, best_strength, fitted, frozen_features, probe, probe_space

pytestmark = pytest.mark.slow


def clouds(classes, each, width=6, seed=0):
    """Overlapping clouds, one a class, on axes of very different lengths."""
    rng = np.random.default_rng(seed)
    middle = np.random.default_rng(99).normal(size=(classes, width))
    label = np.repeat(np.arange(classes), each)
    return (middle[label] + rng.normal(size=(len(label), width))) * 10.0 ** np.arange(width), [f"c{i}" for i in label]


@pytest.mark.parametrize("classes", [2, 4])
def test_it_minimises_what_it_says(classes):
    (learned, names), (measured, theirs) = clouds(classes, 30), clouds(classes, 25, seed=1)
    found = probe("audio", learned, names, measured, theirs, strength=0.1)
    x = torch.from_numpy((learned - learned.mean(0)) / learned.std(0))
    y = torch.tensor([int(name[1:]) for name in names])
    weight = torch.zeros(classes, x.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.double, requires_grad=True)
    steps = torch.optim.LBFGS([weight, bias], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14)

    def loss():
        steps.zero_grad()
        value = 0.1 * torch.nn.functional.cross_entropy(x @ weight.T + bias, y, reduction="sum")
        # Two classes are one logistic function for scikit-learn: one weight vector w, not w/2 and -w/2.
        value = value + (weight.square().sum() / 2 if classes > 2 else (weight[1] - weight[0]).square().sum() / 2)
        value.backward()
        return value

    steps.step(loss)
    named = ((torch.from_numpy((measured - learned.mean(0)) / learned.std(0))) @ weight.T + bias).argmax(1)
    right = sum(int(own[1:]) == int(n) for own, n in zip(theirs, named, strict=True))
    assert found.accuracy == right / len(theirs)
    assert found.chance < found.accuracy < 1


def test_the_strength_is_chosen_on_the_training_items_alone():
    """Where every coordinate is noise but the labels are easy in the mean, a weak fit is the better one."""
    easy, names = clouds(3, 40)
    rng = np.random.default_rng(0)
    noisy = np.column_stack([easy, rng.normal(size=(len(easy), 200))])
    right = {s: folds_right(noisy, np.array(names), s) for s in STRENGTHS}
    assert right[best_strength(noisy, np.array(names))] == max(right.values())
    assert len(set(right.values())) > 1


def folds_right(numbers, names, strength):
    """By loops: every third item of a class is left out in turn."""
    seen, right = {}, 0
    fold = [(seen.__setitem__(n, seen.get(n, -1) + 1), seen[n] % 3)[1] for n in names]
    for left_out in range(3):
        inside = [i for i, f in enumerate(fold) if f != left_out]
        outside = [i for i, f in enumerate(fold) if f == left_out]
        machine = fitted(numbers[inside], names[inside], strength)
        right += sum(machine.predict(numbers[[i]])[0] == names[i] for i in outside)
    return right


def test_a_class_with_one_item_is_no_obstacle():
    x, names = clouds(3, 4)
    assert probe("audio", x[:9], names[:9], x, names).items == 12


def test_classes_it_never_saw_are_an_error():
    x, names = clouds(3, 4)
    with pytest.raises(UsageError, match="class 'bird' is never seen in training"):
        probe("audio", x, names, x, [*names[:-1], "bird"])


def test_a_space_is_probed_on_rows_it_did_not_learn_from(run, world):
    table = manifest.read(world)
    learned, measured = table.rows[:60], table.rows[60:]
    space = load(run)
    result = probe_space(space, learned, measured, show=False)
    assert [found.modality for found in result.found] == ["image", "audio"]
    embedded = [space.embed([source_of(row, "audio") for row in rows], "audio") for rows in (learned, measured)]
    x, y = (found.features.embedding.numpy() for found in embedded)
    names, theirs = ([str(row.label) for row in rows] for rows in (learned, measured))
    assert result.found[1] == probe("audio", x, names, y, theirs)
    with pytest.raises(UsageError, match="it has no frozen features to probe"):
        probe_space(space, learned, measured, of="features", show=False)
    with pytest.raises(ManifestError, match="give rows a label"):
        probe_space(space, [replace(row, label=None) for row in learned], measured, show=False)


def test_frozen_features_are_mean_and_maximum_of_the_parts(tmp_path):
    missing = ENCODERS["minilm"].missing()
    if missing:
        pytest.skip(missing)
    made, source = ENCODERS["minilm"](), Source("text", "rain on a tin roof")
    known = frozen_features(made, [source], Cache(tmp_path / "cache"))
    parts, mask = made(made.prepare(source)[None], torch.ones(1, len(made.prepare(source)), dtype=torch.bool))
    expected = torch.cat([parts[0][mask[0]].mean(0), parts[0][mask[0]].amax(0)])
    assert np.allclose(known.numbers[0], expected.detach().numpy(), atol=1e-5)


def test_the_command_probes(run, world):
    result = triptych("classify", run, "--data", world, "--by", "embeddings", "--split", "valid", "--of", "sounds")
    assert result.returncode == 0, result.stderr
    assert "by a linear probe" in result.stdout
    same = triptych("classify", run, "--data", world, "--by", "embeddings", "--split", "all")
    assert same.returncode == 2
    assert "learn from rows it is measured on" in same.stderr
