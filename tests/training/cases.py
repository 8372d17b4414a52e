"""Spaces, objectives and batches whose gradients are compared: whole, in chunks, and in two processes."""

from dataclasses import replace

import torch

from triptych.contracts import Batch, Encoder, Modality
from triptych.data import manifest
from triptych.data.loader import Loader, sources_of
from triptych.recipe import ObjectiveUse, Part
from triptych.space import Space
from triptych.training.distributed import ALONE
from triptych.training.step import backward
from triptych.training.terms import Terms

# objective and its settings, similarity and its settings
CASES = {
    "infonce": ("infonce", {}, "cosine", {}),
    "random triplets of parts": ("triplet", {"negatives": "random"}, "matchmap", {"kind": "misa"}),
    "matching by a metric": ("matching", {}, "mahalanobis", {"width": 32, "metric": "low_rank"}),
    "words and regions": ("infonce", {}, "word_region", {}),
    "distill": ("distill", {"classes": 9, "width": 32}, "cosine", {}),
    "negatives drawn": ("contrastive", {}, "cosine", {}),
}


def prepared_case(recipe, name):
    """A space, its terms and a batch in double, the same every time."""
    objective, settings, similarity, shape = CASES[name]
    use = ObjectiveUse(objective, recipe.objectives[0].pairs, settings=settings)
    recipe = replace(recipe, objectives=(use,), space=replace(recipe.space, similarity=Part(similarity, shape)))
    torch.manual_seed(0)
    space = Space(recipe)
    rows = manifest.read(recipe.data.manifest).rows
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    for modality, encoder in encoders.items():
        encoder.learn(s for row in rows for s in sources_of(row, modality))
    batch = next(Loader(rows, encoders, use.pairs, 7, 0).epoch(0))
    wide = {m: x.double() if x.is_floating_point() else x for m, x in batch.inputs.items()}
    teacher = torch.softmax(torch.randn(len(batch.group), 9, dtype=torch.float64), dim=1)
    return space.double().train(), Terms(recipe).double(), replace(batch, inputs=wide, teacher=teacher)


def split(batch: Batch, rank: int, count: int) -> Batch:
    """One process's part of a batch; the last has the more."""
    rows = len(batch.group)
    own = slice(rows * rank // count, rows * (rank + 1) // count)
    return Batch(
        {m: x[own] for m, x in batch.inputs.items()},
        {m: x[own] for m, x in batch.masks.items()},
        batch.group[own],
        None if batch.teacher is None else batch.teacher[own],
        batch.given,
    )


def gradients(space, terms, batch, chunk, team=ALONE):
    """The terms of a batch and every gradient they leave, from the same random state."""
    for parameter in [*space.parameters(), *terms.parameters()]:
        parameter.grad = None
    team.seed(5)
    values = backward(space, terms, batch, chunk, team=team)
    named = [*space.named_parameters(), *terms.named_parameters()]
    return (
        {name: value.detach().clone() for name, value in values.items()},
        {name: p.grad.clone() for name, p in named if p.grad is not None},
    )
