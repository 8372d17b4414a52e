"""An optimizer step: clipping, gradient caching in chunks, collapse."""

from dataclasses import replace

import pytest
import torch

from tests.training.cases import load_batch
from triptych.checkpoint import load
from triptych.errors import InputError
from triptych.interfaces import Batch, Source
from triptych.objectives import OBJECTIVES
from triptych.recipe import Component, ObjectiveConfig, TrainingConfig
from triptych.similarities import SIMILARITIES
from triptych.space import Space
from triptych.training.objective_set import ObjectiveSet
from triptych.training.step import backward, format_losses, take_step


def test_a_step_clips_gradients_and_temperatures(tiny_recipe, run_dir):
    space, objectives = load(run_dir), ObjectiveSet(tiny_recipe)
    for objective in objectives.objectives:
        objective.state_dict()["log_scale"].fill_(4.6)
    optimizer = torch.optim.SGD([*space.parameters(), *objectives.parameters()], lr=1.0)
    before = torch.cat([p.detach().flatten().clone() for p in space.parameters()])
    take_step(space, objectives, optimizer, load_batch(tiny_recipe, space), TrainingConfig(max_grad_norm=1e-3))
    moved = torch.cat([p.detach().flatten() for p in space.parameters()]) - before
    assert 0 < moved.norm() <= 1.001e-3
    for objective in objectives.objectives:
        objective.state_dict()["log_scale"].fill_(6.0)
    take_step(space, objectives, optimizer, load_batch(tiny_recipe, space), TrainingConfig(max_grad_norm=1e-3))
    assert all(o.state_dict()["log_scale"] <= 4.606 for o in objectives.objectives)


def test_a_nan_gradient_leaves_the_weights_unchanged(tiny_recipe, run_dir):
    space, objectives = load(run_dir), ObjectiveSet(tiny_recipe)
    before = [p.detach().clone() for p in space.parameters()]
    first = next(space.parameters())
    first.register_hook(lambda gradient: gradient * float("nan"))
    optimizer = torch.optim.SGD(space.parameters(), lr=1.0)
    with pytest.raises(InputError, match=r"the gradient of .* contains NaN"):
        take_step(space, objectives, optimizer, load_batch(tiny_recipe, space), TrainingConfig())
    assert all(torch.equal(a, b) for a, b in zip(before, space.parameters(), strict=True))


def compute_gradients(space, objectives, batch, chunk_size):
    """Return the loss terms of a batch and all gradients, from the same random state."""
    for parameter in [*space.parameters(), *objectives.parameters()]:
        parameter.grad = None
    torch.manual_seed(5)
    values = backward(space, objectives, batch, chunk_size)
    next_random = torch.rand(1).item()
    named = [*space.named_parameters(), *objectives.named_parameters()]
    return values, {name: p.grad.clone() for name, p in named if p.grad is not None}, next_random


def to_double(batch: Batch) -> Batch:
    double_inputs = {m: x.double() if x.is_floating_point() else x for m, x in batch.inputs.items()}
    teacher = torch.softmax(torch.randn(len(batch.group), 9, dtype=torch.float64), dim=1)
    return replace(batch, inputs=double_inputs, teacher_targets=teacher)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_give_the_gradient_of_the_whole_batch(tiny_recipe, run_dir, objective, similarity):
    settings = {"distill": {"num_classes": 9, "embed_dim": 32}, "triplet": {"negatives": "hardest"}}.get(objective, {})
    similarity_settings = {"mahalanobis": {"embed_dim": 32, "metric": "low_rank"}}.get(similarity, {})
    config = ObjectiveConfig(objective, tiny_recipe.objectives[0].pairs, settings=settings)
    torch.manual_seed(0)
    space = load(run_dir)
    space.similarity = SIMILARITIES[similarity](**similarity_settings)
    space.double().train()
    objectives = ObjectiveSet(replace(tiny_recipe, objectives=(config,))).double()
    batch = to_double(load_batch(tiny_recipe, space))
    expected_values, expected_gradients, _ = compute_gradients(space, objectives, batch, 0)
    for chunk_size in (3, 8):
        values, chunk_gradients, _ = compute_gradients(space, objectives, batch, chunk_size)
        assert values.keys() == expected_values.keys()
        for name, value in values.items():
            assert value.item() == pytest.approx(expected_values[name].item(), rel=1e-9)
        assert chunk_gradients.keys() == expected_gradients.keys()
        for name, gradient in chunk_gradients.items():
            assert torch.allclose(gradient, expected_gradients[name], rtol=1e-6, atol=1e-9), name


def test_chunks_repeat_dropout_and_restore_the_random_state(tiny_recipe):
    space_config = replace(
        tiny_recipe.space,
        head=Component("mlp", {"hidden_dim": 48, "dropout": 0.5}),
        similarity=Component("matchmap", {"reduction": "sisa"}),
    )
    recipe = replace(tiny_recipe, space=space_config)
    torch.manual_seed(0)
    space = Space(recipe)
    space.encoder("text").fit_vocabulary(Source("text", text) for text in ("a bell rings", "two red drums"))
    space.double().train()
    objectives, batch = ObjectiveSet(recipe).double(), to_double(load_batch(tiny_recipe, space))
    values, first_gradients, next_random = compute_gradients(space, objectives, batch, 4)
    second_values, second_gradients, next_random_again = compute_gradients(space, objectives, batch, 4)
    assert next_random == next_random_again
    assert all(torch.equal(first_gradients[name], second_gradients[name]) for name in first_gradients)
    loss = sum(v.item() for v in values.values())
    direction = {n: torch.randn_like(p) for n, p in space.named_parameters() if n in first_gradients}
    slope = sum((first_gradients[n] * direction[n]).sum().item() for n in direction)
    step = 1e-6
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            for name, parameter in space.named_parameters():
                if name in direction:
                    parameter += sign * step * direction[name]
        losses.append(sum(v.item() for v in compute_gradients(space, objectives, batch, 4)[0].values()))
        with torch.no_grad():
            for name, parameter in space.named_parameters():
                if name in direction:
                    parameter -= sign * step * direction[name]
    assert loss == pytest.approx(sum(v.item() for v in second_values.values()))
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("chunk_size", [0, 3])
def test_collapsed_embeddings_raise(tiny_recipe, run_dir, chunk_size):
    space = load(run_dir)
    batch = load_batch(tiny_recipe, space)
    identical_inputs = replace(batch, inputs={m: x[:1].expand_as(x) for m, x in batch.inputs.items()})
    backward(
        space, ObjectiveSet(tiny_recipe), identical_inputs, chunk_size
    )  # equal embeddings of equal inputs are no collapse
    with torch.no_grad():
        for weights in space.encoder("image").parameters():
            weights.zero_()
    with pytest.raises(
        InputError, match=r"all items of image have the same embedding|every embedding of image has length 0"
    ):
        backward(space, ObjectiveSet(tiny_recipe), batch, chunk_size)
    with torch.no_grad():
        for weights in space.heads["image"].parameters():
            weights.zero_()
    with pytest.raises(InputError, match="every embedding of image has length 0"):
        backward(space, ObjectiveSet(tiny_recipe), batch, chunk_size)


def test_format_losses_lists_each_objective():
    assert format_losses({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "loss": 3.0}) == "loss 3.000"
    assert (
        format_losses({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "triplet(a,b).z": 0.5, "loss": 3.5})
        == "loss 3.500 = 3.00 infonce(a,b) + 0.50 triplet(a,b)"
    )
