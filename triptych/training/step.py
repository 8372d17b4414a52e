"""One step down the gradient: of the whole batch at once, or in chunks with the same gradient in less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triptych.contracts import Batch, Features, Modality
from triptych.errors import InputError
from triptych.recipe import Precision, TrainingRecipe
from triptych.space import Space, alone, joined
from triptych.training.terms import Terms


def take_step(
    space: Space, terms: Terms, optimizer: torch.optim.Optimizer, batch: Batch, how: TrainingRecipe
) -> dict[str, float]:
    """One optimizer step; returns every term and their sum. What is not finite is an InputError."""
    optimizer.zero_grad(set_to_none=True)
    values = backward(space, terms, batch, how.chunk, how.precision)
    norm = nn.utils.clip_grad_norm_([*space.parameters(), *terms.parameters()], how.clip)
    if not torch.isfinite(norm):
        raise InputError(f"the gradient of {' + '.join(values)} holds NaN or infinity")
    optimizer.step()
    space.similarity.after_step()
    terms.after_step()
    return {name: value.item() for name, value in values.items()} | {"loss": sum(v.item() for v in values.values())}


def backward(
    space: Space, terms: Terms, batch: Batch, chunk: int = 0, precision: Precision = "float32"
) -> dict[str, Tensor]:
    """Every term of a batch, with the gradient of their sum left in the parameters.

    With a chunk, features are made so many rows at a time without a graph, the terms are taken over all of them, and
    their gradient goes back through the features chunk by chunk, made a second time. The gradient is that of the whole
    batch, for any objective and similarity; memory is that of one chunk, the price one more pass forward.

    Source: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache).
    """
    how = _How(terms.reads_parts(space), precision)
    if not 0 < chunk < len(batch.group):
        features = {m: how.features(space, batch, m) for m in batch.inputs}
        values = _checked(terms(space, batch, features))
        torch.stack(list(values.values())).sum().backward()
        return values
    held = {m: _Held.made(space, batch, m, how, chunk) for m in batch.inputs}
    values = _checked(terms(space, batch, {m: one.features() for m, one in held.items()}))
    torch.stack(list(values.values())).sum().backward()
    for one in held.values():
        one.backward()
    return values


@dataclass(frozen=True)
class _How:
    """How features are made: with parts or without, in which precision. They are float32 at least."""

    parts: bool
    precision: Precision

    def features(self, space: Space, batch: Batch, modality: Modality, rows: slice | None = None) -> Features:
        inputs, mask = batch.inputs[modality], batch.masks[modality]
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            found = space(
                modality,
                inputs[rows or slice(None)],
                mask[rows or slice(None)],
                batch.given.get(modality, "inputs"),
                self.parts,
            )
        if self.precision == "float32":
            return found
        return Features(found.embedding.float(), found.parts.float(), found.mask)


def _checked(values: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    return values


@dataclass
class _Held:
    """The features of one modality without the graph that made them, and how to make them again."""

    space: Space
    batch: Batch
    modality: Modality
    how: _How
    chunk: int
    random: list[Tensor]  # the state before each chunk: dropout must leave out the same values again
    embedding: Tensor  # (N, D), a leaf
    inner: Tensor | None  # (N, P, D), a leaf; None where the only part is the embedding
    mask: Tensor

    @staticmethod
    def made(space: Space, batch: Batch, modality: Modality, how: _How, chunk: int) -> _Held:
        random, found = [], []
        with torch.no_grad():
            for rows in _chunks(len(batch.group), chunk):
                random.append(torch.get_rng_state())
                found.append(how.features(space, batch, modality, rows))
        whole = joined(found, found[0].embedding.shape[1])
        inner = whole.parts.requires_grad_() if how.parts else None
        return _Held(space, batch, modality, how, chunk, random, whole.embedding.requires_grad_(), inner, whole.mask)

    def features(self) -> Features:
        return alone(self.embedding) if self.inner is None else Features(self.embedding, self.inner, self.mask)

    def backward(self) -> None:
        """Through the encoder, with the gradients that have reached the leaves."""
        after = torch.get_rng_state()
        for rows, state in zip(_chunks(len(self.embedding), self.chunk), self.random, strict=True):
            torch.set_rng_state(state)
            again = self.how.features(self.space, self.batch, self.modality, rows)
            pairs = [(again.embedding, self.embedding.grad)]
            if self.inner is not None and self.inner.grad is not None:
                pairs.append((again.parts, self.inner.grad[:, : again.parts.shape[1]]))
            pulled = [(made, grad[rows]) for made, grad in pairs if grad is not None and made.requires_grad]
            if pulled:
                torch.autograd.backward([made for made, _ in pulled], [grad for _, grad in pulled])
        torch.set_rng_state(after)


def _chunks(rows: int, chunk: int) -> Iterator[slice]:
    for first in range(0, rows, chunk):
        yield slice(first, min(first + chunk, rows))
