"""Load the features of a manifest from frozen encoders, and train heads over these features in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.label_noise import Swap
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.devices import choose_device, choose_execution
from triptych.encoders import ENCODERS
from triptych.errors import UsageError, describe_unknown
from triptych.evaluation.retrieval import rank_positives
from triptych.heads import HEADS
from triptych.interfaces import Batch, Encoder, Features, InputKind, Modality, Source, concat_features
from triptych.objectives import OBJECTIVES
from triptych.plugins import Registry
from triptych.recipe import ObjectiveConfig, Recipe, SpaceConfig, TrainingConfig
from triptych.settings import Component, read_component
from triptych.similarities import SIMILARITIES
from triptych.space import Space
from triptych.training.epoch import train_one_epoch
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer

SPLITS = ("train", "valid", "test")
MAX_BATCH_SIZE, MIN_STEPS_PER_EPOCH = 256, 8  # batches are smaller if an epoch would have fewer steps
CHUNK_SIZE = 4096  # number of vectors per forward pass of a head

TensorsByModality = dict[Modality, Tensor]


@dataclass(frozen=True)
class FeatureTable:
    """The rows of one split with their feature vectors by modality. Rows of one group are positives."""

    ids: list[str]
    vectors: TensorsByModality  # (K, 2, W): mean and maximum of an item's parts
    vector_indices: TensorsByModality  # (R, C) the vectors of each row; the first `vector_counts` are valid
    vector_counts: TensorsByModality  # (R,) 0 where a row lacks the modality
    group: Tensor  # (R,)

    def __len__(self) -> int:
        return len(self.ids)

    def sample_vectors(self, modality: Modality, rows: Tensor, random_numbers: np.ndarray) -> Tensor:
        """Return one randomly drawn vector per row: (N, 2, W)."""
        column = torch.from_numpy(random_numbers) % self.vector_counts[modality][rows]
        return self.vectors[modality][self.vector_indices[modality][rows, column]]

    def collect_items(self, modality: Modality) -> tuple[Tensor, Tensor]:
        """Return the vectors of a modality, each vector once per group, and their groups: (K, 2, W), (K,)."""
        mask = torch.arange(self.vector_indices[modality].shape[1]) < self.vector_counts[modality][:, None]  # (R, C)
        groups = self.group[:, None].expand(mask.shape)[mask]
        indices, group = torch.stack([self.vector_indices[modality][mask], groups]).unique(dim=1)
        return self.vectors[modality][indices], group

    def apply_swaps(self, swaps: Sequence[Swap]) -> FeatureTable:
        """Return the table in which each swap gives a row the vectors of another row."""
        row_of = {name: i for i, name in enumerate(self.ids)}
        vector_indices, vector_counts = dict(self.vector_indices), dict(self.vector_counts)
        modalities: set[Modality] = {swap.modality for swap in swaps}
        for modality in modalities:
            modality_swaps = [s for s in swaps if s.modality == modality]
            targets, donors = (
                torch.tensor([row_of[getattr(s, key)] for s in modality_swaps]) for key in ("id", "taken_from")
            )
            for changed, original in ((vector_indices, self.vector_indices), (vector_counts, self.vector_counts)):
                changed[modality] = original[modality].clone()
                changed[modality][targets] = original[modality][donors]
        return replace(self, vector_indices=vector_indices, vector_counts=vector_counts)

    def keep_modalities(self, keep: Mapping[Modality, Tensor]) -> FeatureTable:
        """Return the table with a modality removed from the rows where keep (R,) is False."""
        vector_counts: TensorsByModality = {
            m: count * keep[m] if m in keep else count for m, count in self.vector_counts.items()
        }
        return replace(self, vector_counts=vector_counts)

    def expand_captions(self) -> FeatureTable:
        """Return a table with one row per caption. Captions of one original row stay in one group."""
        row_indices = torch.repeat_interleave(torch.arange(len(self)), self.vector_counts["text"])
        caption_indices = torch.cat([torch.arange(int(count)) for count in self.vector_counts["text"]])
        vector_indices: TensorsByModality = {m: indices[row_indices] for m, indices in self.vector_indices.items()}
        vector_counts: TensorsByModality = {m: count[row_indices] for m, count in self.vector_counts.items()}
        vector_indices["text"] = self.vector_indices["text"][row_indices, caption_indices][:, None]
        vector_counts["text"] = torch.ones_like(row_indices)
        ids = [f"{self.ids[i]} {n}" for i, n in zip(row_indices.tolist(), caption_indices.tolist(), strict=True)]
        return FeatureTable(ids, self.vectors, vector_indices, vector_counts, self.group[row_indices])


class Experiment:
    """The features of the splits of a manifest from frozen encoders, and methods to train and evaluate heads."""

    def __init__(
        self,
        encoders: Mapping[Modality, Encoder],
        encoder_names: Mapping[Modality, str],
        splits: Mapping[str, FeatureTable],
        epochs: int = 12,
    ) -> None:
        self.encoders, self.encoder_names = dict(encoders), dict(encoder_names)
        self.splits, self.epochs = dict(splits), epochs

    @staticmethod
    def from_manifest(
        path: Path,
        encoder_names: Mapping[Modality, str],
        max_rows: int = 0,
        allow_outside: bool = False,
        list_sources: Callable[[Row, Modality], list[Source]] = sources_of,
    ) -> Experiment:
        """Read a manifest and compute or load its features; max_rows limits the training rows."""
        check_encoders(encoder_names)
        table = manifest.read(path, allow_outside)
        missing_splits = [split for split in SPLITS if split not in table.counts.splits]
        if missing_splits:
            missing = ", ".join(missing_splits)
            raise UsageError(f"{path}: a study needs the splits {', '.join(SPLITS)}; missing: {missing}")
        modalities: list[Modality] = [m for m in encoder_names if any(m in row.modalities for row in table.rows)]
        encoders: dict[Modality, Encoder] = {m: ENCODERS[encoder_names[m]]() for m in modalities}
        splits = {split: list(table.split(split).rows) for split in SPLITS}
        splits["train"] = splits["train"][: max_rows or None]
        all_rows = [row for split_rows in splits.values() for row in split_rows]
        sources_by_row: dict[Modality, dict[str, list[Source]]] = {
            m: {row.id: list_sources(row, m) if m in row.modalities else [] for row in all_rows} for m in modalities
        }
        features: dict[Modality, CachedFeatures] = {}
        for m in modalities:
            sources = [source for row_sources in sources_by_row[m].values() for source in row_sources]
            encoder, title = encoders[m].to(choose_device(choose_execution().device)), f"features of {m}"
            features[m] = compute_or_load(encoder, sources, Cache.default(), progress=title)
            encoder.cpu()  # the heads are trained on the CPU
        tables = {split: _build_table(split_rows, sources_by_row, features) for split, split_rows in splits.items()}
        used_names: dict[Modality, str] = {m: encoder_names[m] for m in modalities}
        return Experiment(encoders, used_names, tables)

    def make_recipe(
        self, *objectives: ObjectiveConfig, space: Mapping[str, Any] | None = None, **training: Any
    ) -> Recipe:
        """Make a recipe with the frozen encoders; by default with linear heads on the sphere and cosine similarity.

        All settings of similarity, heads and objectives are written out, so that a changed default changes the recipe.
        """
        modalities = {m for config in objectives for pair in config.pairs for m in pair}
        encoders: dict[Modality, Component] = {
            m: Component(e) for m, e in self.encoder_names.items() if m in modalities
        }
        config = SpaceConfig(encoders, Component("cosine"), embed_dim=256, pooling="mean_max")
        config = replace(config, **(space or {}))
        similarity, head = _fill_defaults(config.similarity, SIMILARITIES), _fill_defaults(config.head, HEADS)
        config = replace(config, similarity=similarity, head=head)
        batch_size = min(MAX_BATCH_SIZE, max(2, len(self.splits["train"]) // MIN_STEPS_PER_EPOCH))
        defaults = TrainingConfig(epochs=self.epochs, batch_size=batch_size, weight_decay=0.1)
        return Recipe("study", config, objectives, training=replace(defaults, **training))

    def fit(
        self,
        recipe: Recipe,
        table: FeatureTable | None = None,
        teacher: Tensor | None = None,
        on_epoch_end: Callable[[Space, dict[str, float]], None] | None = None,
    ) -> Space:
        """Train the heads of a space in memory; on_epoch_end(space, metrics) is called after each epoch."""
        table = table or self.splits["train"]
        torch.manual_seed(recipe.training.seed)
        space, objectives = Space(recipe, self.encoders), ObjectiveSet(recipe)
        optimizer = build_optimizer(recipe, space, objectives)
        pairs = [pair for config in recipe.objectives for pair in config.pairs]
        steps_per_epoch = sum(1 for _ in _plan_batches(table, pairs, recipe.training, 0))
        for epoch in range(recipe.training.epochs):
            batches = _iter_batches(table, pairs, recipe.training, epoch, teacher)
            metrics = train_one_epoch(space, objectives, optimizer, batches, epoch, steps_per_epoch)
            if on_epoch_end:
                on_epoch_end(space.eval(), metrics)
        return space.eval()

    @torch.inference_mode()
    def embed_split(self, space: Space, split: str, modality: Modality) -> tuple[Features, Tensor]:
        """Embed the items of a split; return the features and groups of the items."""
        vectors, group = self.splits[split].collect_items(modality)
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool)
        chunks = [
            space(modality, vectors[i : i + CHUNK_SIZE], mask[i : i + CHUNK_SIZE], input_kind="pooled")
            for i in range(0, len(vectors), CHUNK_SIZE)
        ]
        return concat_features(chunks, space.recipe.space.embed_dim, modality), group

    def evaluate(
        self, space: Space, split: str = "test", a: Modality = "image", b: Modality = "text"
    ) -> RetrievalRanks:
        """Compute the ranks of the positives in both directions between two modalities of a split."""
        features = {m: self.embed_split(space, split, m) for m in (a, b)}
        ranks = {}
        directions: tuple[tuple[Modality, Modality], ...] = ((a, b), (b, a))
        for query, gallery in directions:
            (queries, query_group), (items, item_group) = features[query], features[gallery]
            result = rank_positives(partial(_score_tile, space, queries, items), query_group, item_group)
            has_positive = result.num_positives > 0
            ranks[query, gallery] = result.rank[has_positive, 0], query_group[has_positive]
        return RetrievalRanks(ranks)


@dataclass(frozen=True)
class RetrievalRanks:
    """The rank of the best positive of each query, and the group of the query, by direction."""

    ranks: dict[tuple[Modality, Modality], tuple[Tensor, Tensor]]  # (Q,), (Q,)

    def recall(self, query: Modality, gallery: Modality, k: int) -> float:
        """Return Recall@k in %."""
        return 100 * (self.ranks[query, gallery][0] <= k).double().mean().item()

    def score(self) -> float:
        """Return the mean of R@1, R@5 and R@10 over the directions in %, the score for model selection."""
        return float(np.mean([self.recall(*direction, k) for direction in self.ranks for k in (1, 5, 10)]))

    def to_dict(self) -> dict[str, float]:
        """Return R@1 and R@10 of each direction, and the score, by column name."""
        recalls = {f"{q} → {g} R@{k}": self.recall(q, g, k) for q, g in self.ranks for k in (1, 10)}
        return recalls | {"score": self.score()}

    def hit_rates(self, query: Modality, gallery: Modality, k: int = 10) -> list[float]:
        """Return the fraction of each group's queries with a positive in the top k, sorted by group."""
        rank, group = self.ranks[query, gallery]
        groups, group_index = group.unique(return_inverse=True)
        sums = torch.zeros(len(groups), dtype=torch.float64).index_add(0, group_index, (rank <= k).double())
        return (sums / torch.bincount(group_index)).tolist()


def _score_tile(space: Space, query: Features, gallery: Features, rows: Tensor, columns: Tensor) -> Tensor:
    return space.scores(query.take(rows), gallery.take(columns))


def configure_objective(
    name: str, *pairs: tuple[Modality, Modality], weight: float = 1.0, **settings: Any
) -> ObjectiveConfig:
    """Configure an objective over pairs of modalities, by default image–text."""
    component = _fill_defaults(Component(name, settings), OBJECTIVES)
    return ObjectiveConfig(name, pairs or (("image", "text"),), weight, component.settings)


def _fill_defaults(component: Component, registry: Registry[Any]) -> Component:
    """Return the component with all settings written out."""
    return read_component({"name": component.name, **component.settings}, registry, f"study: {component.name}")


def check_encoders(encoder_names: Mapping[Modality, str]) -> None:
    """Raise a UsageError if an encoder is unknown, belongs to another modality, or is not frozen."""
    for modality, name in encoder_names.items():
        frozen_names = sorted(n for n, encoder in ENCODERS.items() if encoder.modality == modality and encoder.frozen)
        if not ENCODERS.knows(name):
            raise UsageError(describe_unknown(f"frozen {modality} encoder", name, frozen_names))
        actual = ENCODERS[name].modality
        if actual != modality or not ENCODERS[name].frozen:
            problem = f"is for {actual}" if actual != modality else "is not frozen"
            candidates = ", ".join(frozen_names)
            raise UsageError(f"{modality} encoder {name!r} {problem}; frozen encoders for {modality}: {candidates}")


def _build_table(
    rows: Sequence[Row],
    sources_by_row: Mapping[Modality, Mapping[str, list[Source]]],
    features: Mapping[Modality, CachedFeatures],
) -> FeatureTable:
    groups = {name: i for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
    vector_indices: TensorsByModality = {}
    vector_counts: TensorsByModality = {}
    for modality, cached in features.items():
        sources, index_of = sources_by_row[modality], cached.index_of
        indices_by_row = [[index_of[source] for source in sources[row.id] if source in index_of] for row in rows]
        vector_counts[modality] = torch.tensor([len(row_indices) for row_indices in indices_by_row])
        vector_indices[modality] = torch.zeros(len(rows), max(1, int(vector_counts[modality].max())), dtype=torch.long)
        for i, row_indices in enumerate(indices_by_row):
            vector_indices[modality][i, : len(row_indices)] = torch.tensor(row_indices, dtype=torch.long)
    ids, group = [row.id for row in rows], torch.tensor([groups[row.group] for row in rows])
    vectors: TensorsByModality = {m: cached.pooled for m, cached in features.items()}
    return FeatureTable(ids, vectors, vector_indices, vector_counts, group)


def _plan_batches(
    table: FeatureTable, pairs: Sequence[tuple[Modality, Modality]], training: TrainingConfig, epoch: int
) -> Iterator[tuple[tuple[Modality, ...], Tensor]]:
    """Yield for each batch of an epoch its rows, and the trained modalities that all of these rows have."""
    rng = np.random.default_rng([training.seed, epoch])
    modalities: list[Modality] = list(dict.fromkeys(m for pair in pairs for m in pair))
    has_modality = torch.stack([table.vector_counts[m] > 0 for m in modalities], dim=1)  # (R, modalities)
    batches: list[tuple[tuple[Modality, ...], Tensor]] = []
    for presence in has_modality.unique(dim=0):
        present: list[Modality] = [m for m, has in zip(modalities, presence.tolist(), strict=True) if has]
        names = tuple(present)
        if not any(a in names and b in names for a, b in pairs):
            continue
        rows = (has_modality == presence).all(dim=1).nonzero()[:, 0].numpy()
        order = torch.from_numpy(rng.permutation(rows))
        batch_size = min(training.batch_size, len(order))
        batches += [(names, order[i * batch_size : (i + 1) * batch_size]) for i in range(len(order) // batch_size)]
    yield from (batches[i] for i in rng.permutation(len(batches)))


def _iter_batches(
    table: FeatureTable,
    pairs: Sequence[tuple[Modality, Modality]],
    training: TrainingConfig,
    epoch: int,
    teacher: Tensor | None,  # (R, C)
) -> Iterator[Batch]:
    random_numbers = np.random.default_rng([training.seed, epoch, 1]).integers(0, 1 << 30, len(table))
    for names, rows in _plan_batches(table, pairs, training, epoch):
        inputs: TensorsByModality = {m: table.sample_vectors(m, rows, random_numbers[rows.numpy()]) for m in names}
        masks: TensorsByModality = {m: torch.ones(x.shape[:2], dtype=torch.bool) for m, x in inputs.items()}
        teacher_targets = teacher[rows] if teacher is not None else None
        input_kinds: dict[Modality, InputKind] = dict.fromkeys(names, "pooled")
        yield Batch(inputs, masks, table.group[rows], teacher_targets, input_kinds)
