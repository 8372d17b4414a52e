"""One step down the gradient: of the whole batch at once, or in chunks with the same gradient in less memory."""

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
MIN_ROWS_FOR_COLLAPSE = 8  # of fewer rows, equal embeddings may be chance


def take_step(
    space: Space,
    objectives: ObjectiveSet,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    config: TrainingConfig,
    context: DistributedContext = SINGLE_PROCESS,
) -> dict[str, float]:
    """One optimizer step; returns every term and their sum. What is not finite is an InputError."""
    optimizer.zero_grad(set_to_none=True)
    values = backward(space, objectives, batch, config.grad_cache_chunk, config.precision, context)
    norm = nn.utils.clip_grad_norm_([*space.parameters(), *objectives.parameters()], config.max_grad_norm)
    if not torch.isfinite(norm):
        raise InputError(f"the gradient of {' + '.join(values)} holds NaN or infinity")
    optimizer.step()
    space.similarity.after_step()
    objectives.after_step()
    return {name: value.item() for name, value in values.items()} | {"loss": sum(v.item() for v in values.values())}


def check_divergence(values: Mapping[str, float], first_values: Mapping[str, float]) -> None:
    """A term that has grown a thousandfold since its first value is on its way to infinity: an InputError names it."""
    for name, value in values.items():
        if abs(value) > DIVERGENCE_FACTOR * max(1.0, abs(first_values[name])):
            raise InputError(f"{name} exploded: {value:.3g}, from {first_values[name]:.3g} at the start of the epoch")


def format_losses(values: Mapping[str, float]) -> str:
    """The loss, and where several objectives make it up, what each adds."""
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
    """Every term of a batch, with the gradient of their sum left in the parameters.

    With a chunk, features are made so many rows at a time without a graph, the terms are taken over all of them, and
    their gradient goes back through the features chunk by chunk, made a second time. The gradient is that of the whole
    batch, for any objective and similarity; memory is that of one chunk, the price one more pass forward.

    In a team, each process makes the features of its own rows (`batch`), and takes the terms over those of all.

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
    if context.world_size == 1:  # else there are embeddings of rows whose inputs other processes hold
        _check_collapse(batch, features)
    values = _check_finite(objectives(space, full_batch, features))
    torch.stack(list(values.values())).sum().backward()
    for one in grad_caches.values():
        one.backward(local_rows)
    context.all_reduce_gradients([space.encoders, space.heads, space.shared_head], [space.similarity, objectives])
    return values


def _gather_batch(batch: Batch, context: DistributedContext) -> Batch:
    """What the terms ask of a batch, of the rows of all processes."""
    teacher_targets = None if batch.teacher_targets is None else context.all_gather(batch.teacher_targets)
    return replace(batch, group=context.all_gather(batch.group), teacher_targets=teacher_targets)


@dataclass(frozen=True)
class _ForwardConfig:
    """How features are made: with parts or without, in which precision. They are float32 at least."""

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
    """Refuse embeddings of length 0, and equal ones of different inputs: no step leads out of there."""
    for modality, modality_features in features.items():
        embedding, inputs = modality_features.embedding, batch.inputs[modality]
        if len(embedding) < MIN_ROWS_FOR_COLLAPSE:
            continue
        if not embedding.any():
            raise InputError(f"every embedding of {modality} has length 0")
        if (embedding == embedding[0]).all() and not (inputs == inputs[0]).all():
            raise InputError(f"every {modality} has the same embedding, although their contents differ")


def _check_finite(values: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    return values


@dataclass
class _GradCache:
    """The features of one modality, of all rows, without the graph that made them; and how to make our own again."""

    space: Space
    batch: Batch
    modality: Modality
    forward_config: _ForwardConfig
    chunk_size: int
    rng_states: list[Tensor]  # the state before each chunk: dropout must leave out the same values again
    graph_features: Features | None  # with their graph, where one chunk is all: then nothing is made twice
    embedding: Tensor  # (N, D), a leaf
    parts: Tensor | None  # (N, P, D), a leaf; None where the only part is the embedding
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
        """Through the encoder, with the gradients that have reached our own rows of the leaves."""
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
    """Send the gradients of embedding and parts down the graph that made them."""
    pairs = [
        (
            output,
            grad if output is features.embedding else grad[:, : output.shape[1]],
        )  # others' parts may have been longer
        for output, grad in zip((features.embedding, features.parts), grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])


def _iter_chunks(num_rows: int, chunk_size: int) -> Iterator[slice]:
    for start in range(0, num_rows, max(1, chunk_size)):
        yield slice(start, min(start + chunk_size, num_rows))
