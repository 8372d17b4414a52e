"""One optimizer step, with or without gradient caching in chunks of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from triptych.errors import InputError
from triptych.interfaces import Batch, Features, Modality
from triptych.recipe import Precision, TrainingConfig
from triptych.space import Space, concat_features, features_without_parts
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext, read_rng_state, set_rng_state
from triptych.training.objective_set import ObjectiveSet

DIVERGENCE_FACTOR = 1000.0
MIN_ROWS_FOR_COLLAPSE = 8  # in smaller batches, equal embeddings may be a coincidence


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
    """Format the loss, with the contribution of each objective if there are several."""
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

    With a chunk size, the features of all chunks are computed without a graph, and the loss terms over all rows. Then
    each chunk is encoded a second time to backpropagate. The gradient equals the gradient without chunks for any
    objective and similarity. Only one chunk at a time is in memory with its graph.

    With several processes, each process encodes its own rows (`batch`) and computes the loss terms over all rows.

    Source: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache).
    """
    forward_config = _ForwardConfig(objectives.reads_parts(space), precision)
    num_rows = len(batch.group)
    features: dict[Modality, Features]
    if context.world_size == 1 and not 0 < chunk_size < num_rows:
        features = {m: forward_config.compute_features(space, batch, m) for m in batch.inputs}
        _check_collapse(batch, features)
        values = _check_finite(objectives(space, batch, features))
        torch.stack(list(values.values())).sum().backward()
        return values
    local_rows = context.local_slice(num_rows)
    with context.per_rank_rng():
        grad_caches: dict[Modality, _GradCache] = {
            m: _GradCache.build(space, batch, m, forward_config, chunk_size or num_rows, context) for m in batch.inputs
        }
    full_batch = batch if context.world_size == 1 else _gather_batch(batch, context)
    features = {m: grad_cache.to_features() for m, grad_cache in grad_caches.items()}
    if context.world_size == 1:  # with several processes, the inputs of the other rows are not in this process
        _check_collapse(batch, features)
    values = _check_finite(objectives(space, full_batch, features))
    torch.stack(list(values.values())).sum().backward()
    for grad_cache in grad_caches.values():
        grad_cache.backward(local_rows)
    context.all_reduce_gradients([space.encoders, space.heads, space.shared_head], [space.similarity, objectives])
    return values


def _gather_batch(batch: Batch, context: DistributedContext) -> Batch:
    """Gather the fields of a batch that objectives read from all processes."""
    teacher_targets = None if batch.teacher_targets is None else context.all_gather(batch.teacher_targets)
    return replace(batch, group=context.all_gather(batch.group), teacher_targets=teacher_targets)


@dataclass(frozen=True)
class _ForwardConfig:
    """Settings for computing features: with or without parts, and the precision. Features are at least float32."""

    with_parts: bool
    precision: Precision

    def compute_features(self, space: Space, batch: Batch, modality: Modality, rows: slice | None = None) -> Features:
        inputs, mask = batch.inputs[modality], batch.masks[modality]
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            features = space(
                modality,
                inputs[rows or slice(None)],
                mask[rows or slice(None)],
                batch.input_kinds.get(modality, "inputs"),
                self.with_parts,
            )
        if self.precision == "float32":
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
            raise InputError(f"every {modality} has the same embedding, although their inputs differ")


def _check_finite(values: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    return values


@dataclass
class _GradCache:
    """The detached features of one modality for all rows, and the data to recompute those of this process."""

    space: Space
    batch: Batch
    modality: Modality
    forward_config: _ForwardConfig
    chunk_size: int
    rng_states: list[Tensor]  # the state before each chunk, so that dropout masks are the same in both passes
    graph_features: Features | None  # with graph, if there is only one chunk, which need not be recomputed
    embedding: Tensor  # (N, D), a leaf
    parts: Tensor | None  # (N, P, D), a leaf; None if the only part is the embedding
    mask: Tensor

    @staticmethod
    def build(
        space: Space,
        batch: Batch,
        modality: Modality,
        forward_config: _ForwardConfig,
        chunk_size: int,
        context: DistributedContext,
    ) -> _GradCache:
        rng_states, chunks, num_rows = [], [], len(batch.group)
        with torch.set_grad_enabled(chunk_size >= num_rows):
            for chunk_rows in _iter_chunks(num_rows, chunk_size):
                rng_states.append(read_rng_state(batch.group.device))
                chunks.append(forward_config.compute_features(space, batch, modality, chunk_rows))
        features = concat_features(chunks, space.recipe.space.embed_dim, modality).to(batch.group.device)
        embedding = context.all_gather(features.embedding.detach()).requires_grad_()
        parts = context.all_gather(features.parts.detach()).requires_grad_() if forward_config.with_parts else None
        mask = context.all_gather(features.mask)
        graph_features = features if chunks and chunk_size >= num_rows else None
        return _GradCache(
            space, batch, modality, forward_config, chunk_size, rng_states, graph_features, embedding, parts, mask
        )

    def to_features(self) -> Features:
        return (
            features_without_parts(self.embedding, self.modality)
            if self.parts is None
            else Features(self.embedding, self.parts, self.mask, self.modality)
        )

    def backward(self, local_rows: slice) -> None:
        """Backpropagate the gradients of the leaves, restricted to the rows of this process, through the encoder."""
        leaf_grads = (self.embedding.grad, None if self.parts is None else self.parts.grad)
        grads = [None if leaf is None else leaf[local_rows] for leaf in leaf_grads]
        if self.graph_features is not None:
            return _backward_features(self.graph_features, grads)
        device = self.batch.group.device
        final_rng_state = read_rng_state(device)
        for rows, state in zip(_iter_chunks(len(self.batch.group), self.chunk_size), self.rng_states, strict=True):
            set_rng_state(state, device)
            recomputed = self.forward_config.compute_features(self.space, self.batch, self.modality, rows)
            _backward_features(recomputed, [None if grad is None else grad[rows] for grad in grads])
        set_rng_state(final_rng_state, device)
        return None


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


def _iter_chunks(num_rows: int, chunk_size: int) -> Iterator[slice]:
    for start in range(0, num_rows, max(1, chunk_size)):
        yield slice(start, min(start + chunk_size, num_rows))
