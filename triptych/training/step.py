"""One step down the gradient: of the whole batch at once, or in chunks with the same gradient in less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from triptych.contracts import Batch, Features, Modality
from triptych.errors import InputError
from triptych.recipe import Precision, TrainingRecipe
from triptych.space import Space, alone, joined
from triptych.training.distributed import ALONE, Team, random_state, set_random_state
from triptych.training.terms import Terms

EXPLODED = 1000.0
FEW_ROWS = 8  # of fewer rows, equal embeddings may be chance


def take_step(
    space: Space,
    terms: Terms,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    how: TrainingRecipe,
    team: Team = ALONE,
) -> dict[str, float]:
    """One optimizer step; returns every term and their sum. What is not finite is an InputError."""
    optimizer.zero_grad(set_to_none=True)
    values = backward(space, terms, batch, how.chunk, how.precision, team)
    norm = nn.utils.clip_grad_norm_([*space.parameters(), *terms.parameters()], how.clip)
    if not torch.isfinite(norm):
        raise InputError(f"the gradient of {' + '.join(values)} holds NaN or infinity")
    optimizer.step()
    space.similarity.after_step()
    terms.after_step()
    return {name: value.item() for name, value in values.items()} | {"loss": sum(v.item() for v in values.values())}


def refuse_explosion(values: Mapping[str, float], first: Mapping[str, float]) -> None:
    """A term that has grown a thousandfold since its first value is on its way to infinity: an InputError names it."""
    for name, value in values.items():
        if abs(value) > EXPLODED * max(1.0, abs(first[name])):
            raise InputError(f"{name} exploded: {value:.3g}, from {first[name]:.3g} at the start of the epoch")


def in_words(values: Mapping[str, float]) -> str:
    """The loss, and where several objectives make it up, what each adds."""
    sums: dict[str, float] = {}
    for name, value in values.items():
        if name != "loss":
            use = name.rsplit(".", 1)[0]
            sums[use] = sums.get(use, 0.0) + value
    parts = " = " + " + ".join(f"{value:.2f} {name}" for name, value in sums.items()) if len(sums) > 1 else ""
    return f"loss {values['loss']:.3f}{parts}"


def backward(
    space: Space,
    terms: Terms,
    batch: Batch,
    chunk: int = 0,
    precision: Precision = "float32",
    team: Team = ALONE,
) -> dict[str, Tensor]:
    """Every term of a batch, with the gradient of their sum left in the parameters.

    With a chunk, features are made so many rows at a time without a graph, the terms are taken over all of them, and
    their gradient goes back through the features chunk by chunk, made a second time. The gradient is that of the whole
    batch, for any objective and similarity; memory is that of one chunk, the price one more pass forward.

    In a team, each process makes the features of its own rows (`batch`), and takes the terms over those of all.

    Source: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache).
    """
    how = _How(terms.reads_parts(space), precision)
    rows = len(batch.group)
    features: dict[Modality, Features]
    if team.count == 1 and not 0 < chunk < rows:
        features = {m: how.features(space, batch, m) for m in batch.inputs}
        _refuse_constant_embeddings(batch, features)
        values = _checked(terms(space, batch, features))
        torch.stack(list(values.values())).sum().backward()
        return values
    place = team.place(rows)
    with team.own_random():
        held: dict[Modality, _Held] = {m: _Held.made(space, batch, m, how, chunk or rows, team) for m in batch.inputs}
    whole = batch if team.count == 1 else _of_all(batch, team)
    features = {m: one.features() for m, one in held.items()}
    if team.count == 1:  # else there are embeddings of rows whose inputs other processes hold
        _refuse_constant_embeddings(batch, features)
    values = _checked(terms(space, whole, features))
    torch.stack(list(values.values())).sum().backward()
    for one in held.values():
        one.backward(place)
    team.sum_gradients([space.encoders, space.heads, space.shared], [space.similarity, terms])
    return values


def _of_all(batch: Batch, team: Team) -> Batch:
    """What the terms ask of a batch, of the rows of all processes."""
    taught = None if batch.teacher is None else team.gather(batch.teacher)
    return replace(batch, group=team.gather(batch.group), teacher=taught)


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


@torch.no_grad()
def _refuse_constant_embeddings(batch: Batch, features: Mapping[Modality, Features]) -> None:
    """Refuse embeddings of length 0, and equal ones of different inputs: no step leads out of there."""
    for modality, made in features.items():
        embedding, inputs = made.embedding, batch.inputs[modality]
        if len(embedding) < FEW_ROWS:
            continue
        if not embedding.any():
            raise InputError(f"every embedding of {modality} has length 0")
        if (embedding == embedding[0]).all() and not (inputs == inputs[0]).all():
            raise InputError(f"every {modality} has the same embedding, although their contents differ")


def _checked(values: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    return values


@dataclass
class _Held:
    """The features of one modality, of all rows, without the graph that made them; and how to make our own again."""

    space: Space
    batch: Batch
    modality: Modality
    how: _How
    chunk: int
    random: list[Tensor]  # the state before each chunk: dropout must leave out the same values again
    made_whole: Features | None  # with their graph, where one chunk is all: then nothing is made twice
    embedding: Tensor  # (N, D), a leaf
    inner: Tensor | None  # (N, P, D), a leaf; None where the only part is the embedding
    mask: Tensor

    @staticmethod
    def made(space: Space, batch: Batch, modality: Modality, how: _How, chunk: int, team: Team) -> _Held:
        random, found, rows = [], [], len(batch.group)
        with torch.set_grad_enabled(chunk >= rows):
            for some in _chunks(rows, chunk):
                random.append(random_state(batch.group.device))
                found.append(how.features(space, batch, modality, some))
        whole = joined(found, space.recipe.space.width).to(batch.group.device)
        embedding = team.gather(whole.embedding.detach()).requires_grad_()
        inner = team.gather(whole.parts.detach()).requires_grad_() if how.parts else None
        mask = team.gather(whole.mask)
        graph = whole if found and chunk >= rows else None
        return _Held(space, batch, modality, how, chunk, random, graph, embedding, inner, mask)

    def features(self) -> Features:
        return alone(self.embedding) if self.inner is None else Features(self.embedding, self.inner, self.mask)

    def backward(self, place: slice) -> None:
        """Through the encoder, with the gradients that have reached our own rows of the leaves."""
        leaves = (self.embedding.grad, None if self.inner is None else self.inner.grad)
        grads = [None if leaf is None else leaf[place] for leaf in leaves]
        if self.made_whole is not None:
            return _pull(self.made_whole, grads)
        device = self.batch.group.device
        after = random_state(device)
        for rows, state in zip(_chunks(len(self.batch.group), self.chunk), self.random, strict=True):
            set_random_state(state, device)
            again = self.how.features(self.space, self.batch, self.modality, rows)
            _pull(again, [None if grad is None else grad[rows] for grad in grads])
        set_random_state(after, device)
        return None


def _pull(made: Features, grads: Sequence[Tensor | None]) -> None:
    """Send the gradients of embedding and parts down the graph that made them."""
    pairs = [
        (one, grad if one is made.embedding else grad[:, : one.shape[1]])  # others' parts may have been longer
        for one, grad in zip((made.embedding, made.parts), grads, strict=True)
        if grad is not None and one.requires_grad
    ]
    if pairs:
        torch.autograd.backward([one for one, _ in pairs], [grad for _, grad in pairs])


def _chunks(rows: int, chunk: int) -> Iterator[slice]:
    for first in range(0, rows, max(1, chunk)):
        yield slice(first, min(first + chunk, rows))
