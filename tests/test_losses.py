"""The public namespace of the losses, the examples of its docstrings, and the formulas of open_clip."""

import doctest
import importlib.util
import inspect
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import triptych
from triptych import losses
from triptych.losses import InfoNCE, Objective, Sigmoid
from triptych.objectives import OBJECTIVES
from triptych.similarities import SIMILARITIES


def test_the_namespace_has_every_objective_and_similarity():
    for mechanism in (*OBJECTIVES.values(), *SIMILARITIES.values()):
        assert getattr(losses, mechanism.__name__) is mechanism
        assert mechanism.__name__ in losses.__all__
    assert sorted(losses.__all__) == sorted(n for n in vars(losses) if not n.startswith("_"))


def test_the_namespace_is_imported_lazily():
    code = "import sys, triptych; assert 'torch' not in sys.modules; print(triptych.losses.InfoNCE.__name__)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "InfoNCE"
    assert triptych.losses is losses
    assert "losses" in dir(triptych)


@pytest.mark.parametrize("name", losses.__all__)
def test_the_example_of_the_docstring_works(name):
    documented = losses.Objective.forward if name == "Objective" else getattr(losses, name)
    examples = doctest.DocTestFinder(recurse=False).find(documented, name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    results = [runner.run(example) for example in examples]
    assert [result.failed for result in results] == [0], "the docstring has one example, which works"
    assert results[0].attempted >= 3


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_docstrings_describe_all_arguments_and_related_losses(objective):
    text = inspect.getdoc(objective) or ""
    arguments = text.split("Args:\n")[1].split("\n\n")[0]
    assert [name for name in inspect.signature(objective).parameters if f"    {name}: " not in arguments] == []
    for section in ("Inputs:", "Returns:", "Requirements:", "Also known as:", "Example:"):
        assert f"\n{section}" in text


def random_embeddings(n, dim, dtype=torch.float64):
    torch.manual_seed(n)
    return torch.randn(n, dim, dtype=dtype, requires_grad=True), torch.randn(n, dim, dtype=dtype, requires_grad=True)


def assert_same_loss_and_gradients(ours, theirs, leaves, rel=1e-6):
    """Compare two losses of the same leaves, and the gradients of the losses."""
    assert ours.item() == pytest.approx(theirs.item(), rel=rel, abs=rel)
    gradients = [torch.autograd.grad(loss, leaves, retain_graph=True) for loss in (ours, theirs)]
    for our_gradient, their_gradient in zip(*gradients, strict=True):
        assert torch.allclose(our_gradient, their_gradient, rtol=10 * rel, atol=rel)
        assert their_gradient.abs().max() > 1e-8


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
def test_infonce_is_the_loss_of_clip(temperature):
    a, b = random_embeddings(9, 5)
    loss = InfoNCE(temperature=temperature).double()
    logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / temperature
    truth = torch.arange(9)
    expected = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
    assert_same_loss_and_gradients(loss(a, b), expected, (a, b))


@pytest.mark.parametrize(("temperature", "bias"), [(0.1, -10.0), (1.0, 0.5)])
def test_sigmoid_is_the_loss_of_siglip(temperature, bias):
    a, b = random_embeddings(7, 5)
    logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / temperature + bias
    signs = 2 * torch.eye(7, dtype=torch.float64) - 1
    expected = -F.logsigmoid(signs * logits).sum() / 7
    assert_same_loss_and_gradients(Sigmoid(temperature, bias=bias).double()(a, b), expected, (a, b))


@pytest.mark.skipif(importlib.util.find_spec("open_clip") is None, reason="needs open_clip_torch, see `make bench`")
def test_infonce_and_sigmoid_equal_open_clip():
    from bench.peers import load_open_clip_loss

    open_clip, (a, b) = load_open_clip_loss(), random_embeddings(9, 5)
    unit_a, unit_b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    clip = open_clip.ClipLoss()(unit_a, unit_b, torch.tensor(1 / 0.07, dtype=torch.float64))
    assert_same_loss_and_gradients(InfoNCE().double()(a, b), clip, (a, b))
    siglip = open_clip.SigLipLoss()(unit_a, unit_b, torch.tensor(10.0), torch.tensor(-10.0))
    assert_same_loss_and_gradients(Sigmoid().double()(a, b), siglip, (a, b))


def test_a_plain_loop_learns_the_pairs_and_the_temperature():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    y = x @ torch.randn(16, 12)  # a linear map of the same rows
    model, loss = torch.nn.ModuleList([torch.nn.Linear(16, 8), torch.nn.Linear(12, 8)]), InfoNCE()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.02)
    values = []
    for _ in range(60):
        value = loss(model[0](x), model[1](y))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        loss.after_step()
        values.append(value.item())
    scores = losses.Cosine()(model[0](x), model[1](y))
    assert values[-1] < 0.2 * values[0]
    assert (scores.argmax(dim=1) == torch.arange(64)).float().mean() > 0.9
    assert 0.01 <= math.exp(-loss.log_scale.item()) != pytest.approx(0.07, rel=1e-3)


def test_objective_is_the_abstract_class_of_all_losses():
    assert inspect.isabstract(Objective)
    assert all(issubclass(objective, Objective) for objective in OBJECTIVES.values())
