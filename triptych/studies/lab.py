"""The laboratory: rows and what frozen encoders make of them, read once, so that a fit takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.contracts import Batch, Encoder, Features, Given, Modality, Source
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.features import remember
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.data.noise import Swap
from triptych.encoders import ENCODERS
from triptych.errors import UsageError, unknown
from triptych.evaluation.retrieval import places
from triptych.objectives import OBJECTIVES
from triptych.progress import progress
from triptych.recipe import ObjectiveUse, Recipe, SpaceRecipe, TrainingRecipe
from triptych.settings import Part, read_part
from triptych.similarities import SIMILARITIES
from triptych.space import Space, alone, joined
from triptych.training.optimizer import optimizer_of, set_rates
from triptych.training.step import take_step
from triptych.training.terms import Terms

SPLITS = ("train", "valid", "test")
BATCH, STEPS = 256, 8  # rows to a batch; fewer where there are not so many batches to an epoch
CHUNK = 4096  # vectors that go through a head at once


Tensors = dict[Modality, Tensor]


@dataclass(frozen=True)
class Table:
    """The rows of one split: of each modality, which vectors a row has. Rows of one group are right answers."""

    ids: list[str]
    vectors: Tensors  # (K, 2, W): mean and maximum of an item's parts
    places: Tensors  # (R, C) a row's vectors, the first `counts` of them real
    counts: Tensors  # (R,) how many; 0 where the row has none
    group: Tensor  # (R,)

    def __len__(self) -> int:
        return len(self.ids)

    def draw(self, modality: Modality, rows: Tensor, dice: np.ndarray) -> Tensor:
        """One of each row's vectors, as the dice fall: (N, 2, W)."""
        column = torch.from_numpy(dice) % self.counts[modality][rows]
        return self.vectors[modality][self.places[modality][rows, column]]

    def items(self, modality: Modality) -> tuple[Tensor, Tensor]:
        """Every vector of a modality once for each group it is in, and that group: (K, 2, W), (K,)."""
        real = torch.arange(self.places[modality].shape[1]) < self.counts[modality][:, None]  # (R, C)
        both = torch.stack([self.places[modality][real], self.group[:, None].expand(real.shape)[real]])
        place, group = both.unique(dim=1)
        return self.vectors[modality][place], group

    def swapped(self, swaps: Sequence[Swap]) -> Table:
        """The rows with their content exchanged as the swaps say."""
        number = {name: i for i, name in enumerate(self.ids)}
        places, counts = dict(self.places), dict(self.counts)
        swapped: set[Modality] = {swap.modality for swap in swaps}
        for modality in swapped:
            own = [s for s in swaps if s.modality == modality]
            to, taken = (torch.tensor([number[getattr(s, key)] for s in own]) for key in ("id", "taken_from"))
            places[modality], counts[modality] = places[modality].clone(), counts[modality].clone()
            places[modality][to] = self.places[modality][taken]
            counts[modality][to] = self.counts[modality][taken]
        return replace(self, places=places, counts=counts)

    def only(self, keep: Mapping[Modality, Tensor]) -> Table:
        """The rows with a modality taken from those that are not kept: keep (R,) bool."""
        counts: Tensors = {m: count * keep[m] if m in keep else count for m, count in self.counts.items()}
        return replace(self, counts=counts)

    def one_caption_a_row(self) -> Table:
        """A row for every caption, of the same group: more rows for large batches."""
        row = torch.repeat_interleave(torch.arange(len(self)), self.counts["text"])
        number = torch.cat([torch.arange(int(count)) for count in self.counts["text"]])
        places: Tensors = {m: place[row] for m, place in self.places.items()}
        counts: Tensors = {m: count[row] for m, count in self.counts.items()}
        places["text"], counts["text"] = places["text"][torch.arange(len(row)), number][:, None], torch.ones_like(row)
        ids = [f"{self.ids[i]} {n}" for i, n in zip(row.tolist(), number.tolist(), strict=True)]
        return Table(ids, self.vectors, places, counts, self.group[row])


class Lab:
    """Frozen features of a manifest's splits, and short fits of the heads above them."""

    def __init__(
        self,
        encoders: Mapping[Modality, Encoder],
        names: Mapping[Modality, str],
        splits: Mapping[str, Table],
        epochs: int = 12,
    ) -> None:
        self.encoders, self.names, self.splits, self.epochs = dict(encoders), dict(names), dict(splits), epochs

    @staticmethod
    def open(
        path: Path,
        names: Mapping[Modality, str],
        rows: int = 0,
        allow_outside: bool = False,
        sources: Callable[[Row, Modality], list[Source]] = sources_of,
    ) -> Lab:
        """Read a manifest and its features, computed where the cache lacks them; at most so many rows to train on."""
        check_encoders(names)
        table = manifest.read(path, allow_outside)
        missing = [split for split in SPLITS if split not in table.counts.splits]
        if missing:
            raise UsageError(f"{path}: a study needs the splits {', '.join(SPLITS)}; missing: {', '.join(missing)}")
        there: list[Modality] = [m for m in names if any(m in row.modalities for row in table.rows)]
        encoders: dict[Modality, Encoder] = {m: ENCODERS[names[m]]() for m in there}
        splits = {split: list(table.split(split).rows) for split in SPLITS}
        splits["train"] = splits["train"][: rows or None]
        every = [row for some in splits.values() for row in some]
        of: dict[Modality, dict[str, list[Source]]] = {
            m: {row.id: sources(row, m) if m in row.modalities else [] for row in every} for m in there
        }
        known: dict[Modality, Known] = {m: _remembered(encoders[m], m, of[m]) for m in there}
        tables = {split: _table(some, of, known) for split, some in splits.items()}
        used: dict[Modality, str] = {m: names[m] for m in there}
        return Lab(encoders, used, tables)

    def recipe(self, *objectives: ObjectiveUse, space: Mapping[str, Any] | None = None, **training: Any) -> Recipe:
        """A recipe over the lab's encoders: linear heads on the sphere, cosine, unless told otherwise.

        Every setting of similarity and objectives is written out: a default that changes makes another recipe.
        """
        used = {m for use in objectives for pair in use.pairs for m in pair}
        parts: dict[Modality, Part] = {m: Part(name) for m, name in self.names.items() if m in used}
        shape = replace(SpaceRecipe(parts, Part("cosine"), width=256, pooling="mean_max"), **(space or {}))
        shape = replace(shape, similarity=_whole(shape.similarity, SIMILARITIES, "similarity"))
        batch = min(BATCH, max(2, len(self.splits["train"]) // STEPS))
        how = replace(TrainingRecipe(epochs=self.epochs, batch=batch, weight_decay=0.1), **training)
        return Recipe("study", shape, objectives, training=how)

    def fit(self, recipe: Recipe, table: Table | None = None, teacher: Tensor | None = None, each: Any = None) -> Space:
        """Train a space's heads as `train` would, in memory; each(epoch, space, means) is called after every epoch."""
        table = table or self.splits["train"]
        training = recipe.training
        torch.manual_seed(training.seed)
        space, terms = Space(recipe, self.encoders), Terms(recipe)
        optimizer = optimizer_of(recipe, space, terms)
        pairs = [pair for use in recipe.objectives for pair in use.pairs]
        steps = training.epochs * sum(1 for _ in _plan(table, pairs, training, 0))
        done = 0
        for epoch in range(training.epochs):
            torch.manual_seed(training.seed * 1_000_003 + epoch + 1)
            space.train()
            totals: dict[str, list[float]] = {}
            for batch in _batches(table, pairs, training, epoch, teacher):
                set_rates(optimizer, recipe, done, steps)
                for name, value in take_step(space, terms, optimizer, batch, training).items():
                    totals.setdefault(name, []).append(value)
                done += 1
            if each:
                each(epoch, space.eval(), {name: float(np.mean(values)) for name, values in totals.items()})
        return space.eval()

    @torch.inference_mode()
    def features(self, space: Space, split: str, modality: Modality) -> tuple[Features, Tensor]:
        """The items of a split as the space embeds them, and the group of each."""
        vectors, group = self.splits[split].items(modality)
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool)
        pieces = [
            space(modality, vectors[i : i + CHUNK], mask[i : i + CHUNK], given="pooled")
            for i in range(0, len(vectors), CHUNK)
        ]
        return joined(pieces, space.recipe.space.width), group

    def measure(self, space: Space, split: str = "test", a: Modality = "image", b: Modality = "text") -> Measured:
        """Both directions between two modalities of a split."""
        features = {m: self.features(space, split, m) for m in (a, b)}
        found = {}
        directions: tuple[tuple[Modality, Modality], ...] = ((a, b), (b, a))
        for query, gallery in directions:
            (asked, group), (given, given_group) = features[query], features[gallery]
            place = places(partial(_score, space, (query, asked), (gallery, given)), group, given_group)
            found[query, gallery] = place.rank[place.right > 0, 0], group[place.right > 0]
        return Measured(found)


@dataclass(frozen=True)
class Measured:
    """The rank of every query's best right answer, and the query's group, by direction."""

    ranks: dict[tuple[Modality, Modality], tuple[Tensor, Tensor]]  # (Q,), (Q,)

    def recall(self, query: Modality, gallery: Modality, k: int) -> float:
        """Recall@k in %."""
        return 100 * (self.ranks[query, gallery][0] <= k).double().mean().item()

    def score(self) -> float:
        """Mean of R@1, R@5 and R@10 over the directions, in %: the number by which runs are chosen."""
        return float(np.mean([self.recall(*direction, k) for direction in self.ranks for k in (1, 5, 10)]))

    def values(self) -> dict[str, float]:
        """Recalls by name, and the score."""
        named = {f"{q} → {g} R@{k}": self.recall(q, g, k) for q, g in self.ranks for k in (1, 10)}
        return named | {"score": self.score()}

    def hits(self, query: Modality, gallery: Modality, k: int = 10) -> list[float]:
        """Of each group, the share of its queries with a right answer among the first k, in order of groups."""
        rank, group = self.ranks[query, gallery]
        names, member = group.unique(return_inverse=True)
        sums = torch.zeros(len(names), dtype=torch.float64).index_add(0, member, (rank <= k).double())
        return (sums / torch.bincount(member)).tolist()


def _score(
    space: Space, query: tuple[Modality, Features], gallery: tuple[Modality, Features], rows: Tensor, columns: Tensor
) -> Tensor:
    asked, given = (alone(side[1].embedding[some]) for side, some in ((query, rows), (gallery, columns)))
    return space.scores(asked, query[0], given, gallery[0])


def use(name: str, *pairs: tuple[Modality, Modality], weight: float = 1.0, **settings: Any) -> ObjectiveUse:
    """An objective over pairs of modalities, as a recipe would name it."""
    whole = _whole(Part(name, settings), OBJECTIVES, "objective")
    return ObjectiveUse(name, pairs or (("image", "text"),), weight, whole.settings)


def _whole(part: Part, registry: Mapping[str, type], kind: str) -> Part:
    """The part with every setting written out."""
    return read_part({"name": part.name, **part.settings}, registry, kind, f"study: {part.name}")


def check_encoders(names: Mapping[Modality, str]) -> None:
    """An error for the first encoder that is unknown, for another modality, or not frozen."""
    for modality, name in names.items():
        able = sorted(known for known, encoder in ENCODERS.items() if encoder.modality == modality and encoder.frozen)
        if name not in ENCODERS:
            raise UsageError(unknown(f"frozen {modality} encoder", name, able))
        if name not in able:
            found = ENCODERS[name].modality
            wrong = f"is for {found}" if found != modality else "is not frozen"
            raise UsageError(f"{modality} encoder {name!r} {wrong}; frozen ones for {modality}: {', '.join(able)}")


def _remembered(encoder: Encoder, modality: Modality, of: Mapping[str, list[Source]]) -> Known:
    sources = [source for some in of.values() for source in some]
    with progress(f"features of {modality}", len(dict.fromkeys(sources))) as bar:
        found = remember(encoder, sources, Cache.default(), bar=bar)
    return found.place, found.pooled


Known = tuple[dict[Source, int], Tensor]


def _table(
    rows: Sequence[Row], of: Mapping[Modality, Mapping[str, list[Source]]], known: Mapping[Modality, Known]
) -> Table:
    groups = {name: i for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
    places: Tensors = {}
    counts: Tensors = {}
    for modality, (place, _) in known.items():
        own = [[place[source] for source in of[modality][row.id] if source in place] for row in rows]
        counts[modality] = torch.tensor([len(some) for some in own])
        places[modality] = torch.zeros(len(rows), max(1, int(counts[modality].max())), dtype=torch.long)
        for i, some in enumerate(own):
            places[modality][i, : len(some)] = torch.tensor(some, dtype=torch.long)
    group = torch.tensor([groups[row.group] for row in rows])
    return Table([row.id for row in rows], {m: pooled for m, (_, pooled) in known.items()}, places, counts, group)


def _plan(
    table: Table, pairs: Sequence[tuple[Modality, Modality]], training: TrainingRecipe, epoch: int
) -> Iterator[tuple[tuple[Modality, ...], Tensor]]:
    """The batches of an epoch as rows of one kind each: what the rows have of what is trained."""
    rng = np.random.default_rng([training.seed, epoch])
    trained: list[Modality] = list(dict.fromkeys(m for pair in pairs for m in pair))
    has = torch.stack([table.counts[m] > 0 for m in trained], dim=1)  # (R, modalities)
    plan: list[tuple[tuple[Modality, ...], Tensor]] = []
    for kind in has.unique(dim=0):
        names: tuple[Modality, ...] = tuple(m for m, there in zip(trained, kind.tolist(), strict=True) if there)
        if not any(a in names and b in names for a, b in pairs):
            continue
        rows = (has == kind).all(dim=1).nonzero()[:, 0].numpy()
        order = torch.from_numpy(rng.permutation(rows))
        size = min(training.batch, len(order))
        plan += [(names, order[i * size : (i + 1) * size]) for i in range(len(order) // size)]
    yield from (plan[i] for i in rng.permutation(len(plan)))


def _batches(
    table: Table,
    pairs: Sequence[tuple[Modality, Modality]],
    training: TrainingRecipe,
    epoch: int,
    teacher: Tensor | None,  # (R, C)
) -> Iterator[Batch]:
    dice = np.random.default_rng([training.seed, epoch, 1]).integers(0, 1 << 30, len(table))
    for names, rows in _plan(table, pairs, training, epoch):
        inputs: Tensors = {m: table.draw(m, rows, dice[rows.numpy()]) for m in names}
        masks: Tensors = {m: torch.ones(x.shape[:2], dtype=torch.bool) for m, x in inputs.items()}
        taught = teacher[rows] if teacher is not None else None
        given: dict[Modality, Given] = dict.fromkeys(names, "pooled")
        yield Batch(inputs, masks, table.group[rows], taught, given)
