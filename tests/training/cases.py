"""Spaces, objectives and batches that several tests of training share."""

from dataclasses import replace

import torch

from triptych.data import manifest
from triptych.data.loader import Loader, sources_of
from triptych.interfaces import Batch, Encoder, Modality
from triptych.recipe import Component, ObjectiveConfig
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS
from triptych.training.objective_set import ObjectiveSet
from triptych.training.step import backward
from triptych.training.warm_start import residual_heads, set_hold

# objective and its settings, similarity and its settings
CASES = {
    "infonce": ("infonce", {}, "cosine", {}),
    "random triplets of parts": ("triplet", {"negatives": "random"}, "matchmap", {"reduction": "misa"}),
    "matching by a metric": ("matching", {}, "mahalanobis", {"embed_dim": 32, "metric": "low_rank"}),
    "words and regions": ("infonce", {}, "word_region", {}),
    "distill": ("distill", {"num_classes": 9, "embed_dim": 32}, "cosine", {}),
    "negatives drawn": ("contrastive", {}, "cosine", {}),
    "a held ready space": ("infonce", {}, "cosine", {}),
}
HELD_CASE = "a held ready space"  # with residual heads and their penalty


def with_training(recipe, **changes):
    """Return a recipe with other training settings."""
    return replace(recipe, training=replace(recipe.training, **changes))


def load_batch(recipe, space):
    """Load the first batch of eight rows."""
    rows = manifest.read(recipe.data.manifest).rows
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    return next(Loader(rows, encoders, recipe.objectives[0].pairs, 8, 0).iter_epoch(0))


def build_case(recipe, name):
    """Build a space, its objectives and a batch in double precision, always the same."""
    objective, settings, similarity, similarity_settings = CASES[name]
    config = ObjectiveConfig(objective, recipe.objectives[0].pairs, settings=settings)
    component = Component(similarity, similarity_settings)
    space_config = replace(recipe.space, similarity=component, residual=name == HELD_CASE)
    recipe = replace(recipe, objectives=(config,), space=space_config)
    torch.manual_seed(0)
    space = Space(recipe)
    for head in residual_heads(space).values():
        torch.nn.init.normal_(head.correction)
    set_hold(space, 0.7)
    rows = manifest.read(recipe.data.manifest).rows
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    for modality, encoder in encoders.items():
        encoder.fit_vocabulary(s for row in rows for s in sources_of(row, modality))
    batch = next(Loader(rows, encoders, config.pairs, 7, 0).iter_epoch(0))
    double_inputs = {m: x.double() if x.is_floating_point() else x for m, x in batch.inputs.items()}
    teacher = torch.softmax(torch.randn(len(batch.group), 9, dtype=torch.float64), dim=1)
    return (
        space.double().train(),
        ObjectiveSet(recipe).double(),
        replace(batch, inputs=double_inputs, teacher_targets=teacher),
    )


def split_batch(batch: Batch, rank: int, world_size: int) -> Batch:
    """Return the shard of one process; the last may be larger."""
    rows = len(batch.group)
    local_rows = slice(rows * rank // world_size, rows * (rank + 1) // world_size)
    return Batch(
        {m: x[local_rows] for m, x in batch.inputs.items()},
        {m: x[local_rows] for m, x in batch.masks.items()},
        batch.group[local_rows],
        None if batch.teacher_targets is None else batch.teacher_targets[local_rows],
        batch.input_kinds,
    )


def compute_gradients(space, objectives, batch, chunk_size, context=SINGLE_PROCESS):
    """Return the loss terms of a batch and all gradients, from the same random state."""
    for parameter in [*space.parameters(), *objectives.parameters()]:
        parameter.grad = None
    context.seed(5)
    values = backward(space, objectives, batch, chunk_size, context=context)
    named = [*space.named_parameters(), *objectives.named_parameters()]
    return (
        {name: value.detach().clone() for name, value in values.items()},
        {name: p.grad.clone() for name, p in named if p.grad is not None},
    )
