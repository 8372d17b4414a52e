"""One optimizer step, with or without gradient caching in chunks of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from triptych.errors import InputError
from triptych.interfaces import Batch, Features, Modality, concat_features, features_from_embeddings
from triptych.recipe import Precision, TrainingConfig
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext, read_rng_state, set_rng_state
from triptych.training.objective_set import ObjectiveSet
from triptych.training.warm_start import hold_terms

DIVERGENCE_FACTOR = 1000.0  # a loss term has diverged if it exceeds its first value of the epoch by this factor
MIN_ROWS_FOR_COLLAPSE = 8  # rows; equal embeddings in a smaller batch may be a coincidence


def take_step(
    space: Space,
    objectives: ObjectiveSet,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    config: TrainingConfig,
    context: DistributedContext = SINGLE_PROCESS,
) -> dict[str, float]:
    """Take one optimizer step; return all loss terms and their sum. Raise an InputError if a value is not finite."""
    optimizer.zero_grad(set_to_none=True)
    values = backward(space, objectives, batch, config.grad_cache_chunk, config.precision, context)
    norm = nn.utils.clip_grad_norm_([*space.parameters(), *objectives.parameters()], config.max_grad_norm)
    if not torch.isfinite(norm):
        raise InputError(f"the gradient of {' + '.join(values)} contains NaN or infinity")
    optimizer.step()
    space.similarity.after_step()
    objectives.after_step()
    return {name: value.item() for name, value in values.items()} | {"loss": sum(v.item() for v in values.values())}


def check_divergence(values: Mapping[str, float], first_values: Mapping[str, float]) -> None:
    """Raise an InputError if a loss term has grown a thousandfold since the start of the epoch."""
    for name, value in values.items():
        if abs(value) > DIVERGENCE_FACTOR * max(1.0, abs(first_values[name])):
            raise InputError(f"{name} diverged: {value:.3g}, from {first_values[name]:.3g} at the start of the epoch")


def format_losses(values: Mapping[str, float]) -> str:
    """Format the loss. If there are several objectives, add the contribution of each objective."""
    sums: dict[str, float] = {}
    for name, value in values.items():
        if name != "loss":
            objective_name = name.rsplit(".", 1)[0]
            sums[objective_name] = sums.get(objective_name, 0.0) + value
    breakdown = " = " + " + ".join(f"{value:.2f} {name}" for name, value in sums.items()) if len(sums) > 1 else ""
    return f"loss {values['loss']:.3f}{breakdown}"


def backward(
    space: Space,
    objectives: ObjectiveSet,
    batch: Batch,
    chunk_size: int = 0,
    precision: Precision = "float32",
    context: DistributedContext = SINGLE_PROCESS,
) -> dict[str, Tensor]:
    """Compute the loss terms of a batch and accumulate the gradient of their sum in the parameters.

    The penalty of a warm start depends on parameters only: each process adds its gradient after the all-reduce.

    With a chunk size, the features of all chunks are computed without a graph, and the loss terms over all rows. Then
    each chunk is encoded a second time to backpropagate. The gradient equals the gradient without chunks for any
    objective and similarity. Only one chunk at a time is in memory with its graph.

    With several processes, each process encodes its own rows (`batch`) and computes the loss terms over all rows.

    Source: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache).
    """
    values = _backward_objectives(space, objectives, batch, chunk_size, precision, context)
    penalties = hold_terms(space)
    return values | (_backward_losses(penalties) if penalties else {})


def _backward_objectives(
    space: Space,
    objectives: ObjectiveSet,
    batch: Batch,
    chunk_size: int,
    precision: Precision,
    context: DistributedContext,
) -> dict[str, Tensor]:
    """Backpropagate the objectives, as `backward` describes."""
    with_parts, num_rows = objectives.reads_parts(space), len(batch.group)
    compute = partial(_compute_features, space, batch, with_parts, precision)
    features: dict[Modality, Features]
    if context.world_size == 1 and not 0 < chunk_size < num_rows:
        features = {m: compute(m) for m in batch.inputs}
        _check_collapse(batch, features)
        return _backward_losses(objectives(space, batch, features))
    local_rows = context.local_slice(num_rows)
    with context.per_rank_rng():
        grad_caches: dict[Modality, _GradCache] = {
            m: _GradCache(space, batch, m, compute, with_parts, chunk_size or num_rows, context) for m in batch.inputs
        }
    features = {m: grad_cache.to_features() for m, grad_cache in grad_caches.items()}
    if context.world_size == 1:  # with several processes, the inputs of the other rows are not in this process
        _check_collapse(batch, features)
    else:  # gather the fields of the batch that objectives read
        group, targets = context.all_gather(batch.group), batch.teacher_targets
        targets = None if targets is None else context.all_gather(targets)
        batch = replace(batch, group=group, teacher_targets=targets)
    values = _backward_losses(objectives(space, batch, features))
    for grad_cache in grad_caches.values():
        grad_cache.backward(local_rows)
    context.all_reduce_gradients([space.encoders, space.heads, space.shared_head], [space.similarity, objectives])
    return values


def _compute_features(
    space: Space, batch: Batch, with_parts: bool, precision: Precision, modality: Modality, rows: slice = slice(None)
) -> Features:
    """Compute the features of some rows of a batch. The features are float32 also if the encoder runs in bfloat16."""
    inputs, mask = batch.inputs[modality][rows], batch.masks[modality][rows]
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        features = space(modality, inputs, mask, batch.input_kinds.get(modality, "inputs"), with_parts)
    if precision == "float32":
        return features
    return replace(features, embedding=features.embedding.float(), parts=features.parts.float())


@torch.no_grad()
def _check_collapse(batch: Batch, features: Mapping[Modality, Features]) -> None:
    """Raise an InputError if the embeddings have collapsed: all of length 0, or equal for different inputs."""
    for modality, modality_features in features.items():
        embedding, inputs = modality_features.embedding, batch.inputs[modality]
        if len(embedding) < MIN_ROWS_FOR_COLLAPSE:
            continue
        if not embedding.any():
            raise InputError(f"every embedding of {modality} has length 0")
        if (embedding == embedding[0]).all() and not (inputs == inputs[0]).all():
            raise InputError(f"all items of {modality} have the same embedding, although their inputs differ")


def _backward_losses(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Backpropagate the sum of the loss terms. Raise an InputError if a term is not finite."""
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    torch.stack(list(values.values())).sum().backward()
    return values


class _GradCache:
    """The detached features of one modality for all rows, and the data to recompute the features of this process."""

    def __init__(
        self,
        space: Space,
        batch: Batch,
        modality: Modality,
        compute: Callable[[Modality, slice], Features],
        with_parts: bool,
        chunk_size: int,
        context: DistributedContext,
    ) -> None:
        self.modality: Modality = modality
        self.compute, self.device, num_rows = compute, batch.group.device, len(batch.group)
        self.chunks = [slice(i, min(i + chunk_size, num_rows)) for i in range(0, num_rows, max(1, chunk_size))]
        self.rng_states: list[Tensor] = []  # the state before each chunk: both passes use the same dropout masks
        outputs, is_single_chunk = [], chunk_size >= num_rows
        with torch.set_grad_enabled(is_single_chunk):
            for rows in self.chunks:
                self.rng_states.append(read_rng_state(self.device))
                outputs.append(compute(modality, rows))
        features = concat_features(outputs, space.recipe.space.embed_dim, modality).to(self.device)
        # A single chunk keeps its graph, so that its features are not computed again.
        self.graph_features = features if outputs and is_single_chunk else None
        # The leaves of the graph of the loss: embedding (N, D), and parts (N, P, D) or None if parts are not read.
        self.embedding = context.all_gather(features.embedding.detach()).requires_grad_()
        self.parts = context.all_gather(features.parts.detach()).requires_grad_() if with_parts else None
        self.mask = context.all_gather(features.mask)

    def to_features(self) -> Features:
        if self.parts is None:
            return features_from_embeddings(self.embedding, self.modality)
        return Features(self.embedding, self.parts, self.mask, self.modality)

    def backward(self, local_rows: slice) -> None:
        """Backpropagate the gradients of the leaves, restricted to the rows of this process, through the encoder."""
        leaf_grads = (self.embedding.grad, None if self.parts is None else self.parts.grad)
        grads = [None if grad is None else grad[local_rows] for grad in leaf_grads]
        if self.graph_features is not None:
            _backward_features(self.graph_features, grads)
            return
        final_rng_state = read_rng_state(self.device)
        for rows, state in zip(self.chunks, self.rng_states, strict=True):
            set_rng_state(state, self.device)
            chunk_grads = [None if grad is None else grad[rows] for grad in grads]
            _backward_features(self.compute(self.modality, rows), chunk_grads)
        set_rng_state(final_rng_state, self.device)


def _backward_features(features: Features, grads: Sequence[Tensor | None]) -> None:
    """Backpropagate the gradients of embedding and parts through their graph."""
    pairs = [
        # Gathered parts are padded to the longest of all chunks and processes.
        (output, grad if output is features.embedding else grad[:, : output.shape[1]])
        for output, grad in zip((features.embedding, features.parts), grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])
