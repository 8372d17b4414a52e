"""Choose the weight of the penalty that holds heads near a ready space, by cross-validation on the training pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from triptych.data.features import CachedFeatures
from triptych.data.loader import Loader, sources_of
from triptych.data.manifest import Row
from triptych.encoders.unavailable import UnavailableEncoder
from triptych.errors import RecipeError
from triptych.interfaces import Encoder, Modality, features_from_embeddings
from triptych.progress import notify, track_progress
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext
from triptych.training.epoch import train_one_epoch
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer, freeze_parameters
from triptych.training.training_data import load_features
from triptych.training.warm_start import build_space, raise_epochs, reset_heads, set_hold, standardise_heads

HOLDS = (math.inf, 30.0, 10.0, 3.0, 1.0, 0.0)  # from the strongest to the weakest
MIN_PAIRS = 10  # fewer pairs: the ready space is kept
SINGLE_SPLIT_PAIRS = 1000  # from this number of pairs, one held-out fold is enough
NUM_FOLDS = 3
MAX_STEPS = 40  # optimizer steps of one fit
TEMPERATURES = tuple(0.05 * 2**k for k in range(8))  # in standard deviations of the scores


def start_from_ready_space(
    recipe: Recipe, rows: Sequence[Row], context: DistributedContext = SINGLE_PROCESS, show_progress: bool = False
) -> Space:
    """Build the space of a recipe from the ready space `training.init`, and set the weight of the penalty."""
    space = build_space(recipe).to(context.device)
    freeze_parameters(space, recipe.training.freeze)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    without_cache = recipe.data.cache == "off"  # the features are needed anyway
    cached = replace(recipe, data=replace(recipe.data, cache="")) if without_cache else recipe
    features = load_features(cached, rows, encoders, context, show_progress)
    standardise_heads(space, rows, features)
    hold = recipe.training.hold
    if hold == "auto":
        chosen = choose_hold(space, rows, features, show_progress) if context.is_main else 0.0
        hold = context.broadcast(chosen)
        notify(
            f"training.hold = auto: {hold:g}{' (the ready space is kept)' if hold == math.inf else ''}", show_progress
        )
    set_hold(space, hold)
    return space


def choose_hold(
    space: Space, rows: Sequence[Row], features: Mapping[Modality, CachedFeatures], show_progress: bool = False
) -> float:
    """Return the weight of the penalty; inf means that the ready space is kept.

    For each weight and fold, the heads are trained on the other folds. The loss of a held-out pair is the
    cross-entropy of its true partner among the held-out items, in both directions, at the best temperature. Among the
    weights whose loss is within one standard error of the smallest loss, the strongest is chosen.
    """
    recipe = space.recipe
    if space.similarity.reads_parts:
        raise RecipeError("training.hold = auto needs a similarity of embeddings; set training.hold to a number")
    pairs = list(dict.fromkeys(pair for config in recipe.objectives for pair in config.pairs))
    usable = [row for row in rows if any(_has_pair(row, pair, features) for pair in pairs)]
    if len(usable) < MIN_PAIRS:
        notify(f"{len(usable)} pairs are too few to train on: the run keeps the ready space", show_progress)
        return math.inf
    folds = make_folds(usable, recipe.training.seed)
    used_folds = range(NUM_FOLDS if len(usable) < SINGLE_SPLIT_PAIRS else 1)
    losses: dict[float, list[float]] = {hold: [] for hold in HOLDS}
    total = len(used_folds) * len(HOLDS)
    with without_encoders(space), track_progress("choosing training.hold", total, show_progress) as bar:
        for fold in used_folds:
            train_rows = [row for row, f in zip(usable, folds, strict=True) if f != fold]
            test_rows = [row for row, f in zip(usable, folds, strict=True) if f == fold]
            for hold in HOLDS:
                if math.isfinite(hold):
                    _fit(space, train_rows, features, hold)
                losses[hold] += [loss for pair in pairs for loss in _pair_losses(space, test_rows, pair, features)]
                reset_heads(space)
                bar.advance()
    return select_strongest(losses)


def select_strongest(losses: Mapping[float, Sequence[float]]) -> float:
    """Return the largest weight whose mean loss is within one standard error of the smallest mean loss.

    The standard error is that of the mean of the paired differences.
    """
    table = {hold: np.asarray(values) for hold, values in losses.items()}
    if not len(next(iter(table.values()))):
        return math.inf
    best = table[min(table, key=lambda hold: (table[hold].mean(), -hold))]
    within = []
    for hold, values in table.items():
        differences = values - best
        error = differences.std(ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
        if differences.mean() <= error:
            within.append(hold)
    return max(within)


@contextmanager
def without_encoders(space: Space) -> Iterator[None]:
    """Replace the encoders by empty modules, because only cached features are used: a step takes less time."""
    encoders = space.encoders
    reason = "only cached features are used"
    empty = {m: UnavailableEncoder(m, space.encoder(m).feature_dim, math.inf, reason) for m in space.modalities}
    space.encoders = nn.ModuleDict(empty)
    try:
        yield
    finally:
        space.encoders = encoders


def make_folds(rows: Sequence[Row], seed: int) -> list[int]:
    """Return the fold of each row. Rows of the same file share a fold; a text, such as a class, may recur."""
    names = [str(row.image or row.audio or row.video or row.group) for row in rows]
    unique = list(dict.fromkeys(names))
    order = np.random.default_rng([seed, len(unique)]).permutation(len(unique))
    fold_of = {unique[group]: position % NUM_FOLDS for position, group in enumerate(order.tolist())}
    return [fold_of[name] for name in names]


def cross_entropies(scores: Tensor, groups: Tensor) -> Tensor:
    """Return, for each row and column, the cross-entropy of the diagonal: (2, N). `groups` marks other positives.

    -log ( e^(s_ii / t) / (e^(s_ii / t) + Σ_j e^(s_ij / t)) ),  over the j of other groups. The temperature t is the one
    with the smallest mean.
    """
    others = groups[:, None] != groups[None]  # (N, N)
    candidates = others | torch.eye(len(scores), dtype=torch.bool)
    scale = scores.std().clamp_min(1e-12)
    best = torch.full((2, len(scores)), torch.inf, dtype=scores.dtype)
    for temperature in TEMPERATURES:
        logits = (scores / (temperature * scale)).masked_fill(~candidates, -torch.inf)
        losses = torch.stack([logits.logsumexp(dim=1), logits.logsumexp(dim=0)]) - logits.diagonal()
        if losses.mean() < best.mean():
            best = losses
    return best


def _fit(space: Space, rows: Sequence[Row], features: Mapping[Modality, CachedFeatures], hold: float) -> None:
    """Train the heads on rows, from their start."""
    recipe = space.recipe
    training = replace(recipe.training, epochs=1, min_steps=MAX_STEPS)
    fit_heads(space, rows, features, hold, raise_epochs(replace(recipe, training=training), rows))
    space.recipe = recipe


def fit_heads(
    space: Space,
    rows: Sequence[Row],
    features: Mapping[Modality, CachedFeatures],
    hold: float,
    recipe: Recipe,
) -> None:
    """Train the heads of a space on pooled features, without a run folder."""
    space.recipe = replace(recipe, training=replace(recipe.training, freeze=()))
    torch.manual_seed(recipe.training.seed)
    set_hold(space, hold)
    objectives = ObjectiveSet(space.recipe)
    device = next(space.parameters()).device
    objectives.to(device)
    optimizer = build_optimizer(space.recipe, space, objectives)
    pairs = dict.fromkeys(pair for config in recipe.objectives for pair in config.pairs)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    options = recipe.training.batch_size, recipe.training.seed
    loader = Loader(rows, encoders, pairs, *options, precomputed=features, with_parts=False)
    for epoch in range(recipe.training.epochs):
        train_one_epoch(space, objectives, optimizer, loader.iter_epoch(epoch), epoch, loader.steps_per_epoch)


def _has_pair(row: Row, pair: tuple[Modality, Modality], features: Mapping[Modality, CachedFeatures]) -> bool:
    """Return whether the features of both modalities of a pair are known."""
    return all(m in row.modalities and sources_of(row, m)[0] in features[m].index_of for m in pair)


@torch.inference_mode()
def _pair_losses(
    space: Space,
    rows: Sequence[Row],
    pair: tuple[Modality, Modality],
    features: Mapping[Modality, CachedFeatures],
) -> list[float]:
    """Return the mean cross-entropy of each held-out row, over both directions."""
    rows = [row for row in rows if _has_pair(row, pair, features)]
    if len(rows) < 2:
        return []
    was_training, device = space.training, next(space.parameters()).device
    space.eval()
    embedded = []
    for modality in pair:
        indices = [features[modality].index_of[sources_of(row, modality)[0]] for row in rows]
        pooled, mask = features[modality].load_batch(indices, with_parts=False)
        embeddings = space.project(modality, pooled.to(device), mask.to(device), "pooled").cpu()
        embedded.append(features_from_embeddings(embeddings, modality))
    space.train(was_training)
    numbers = {group: i for i, group in enumerate(dict.fromkeys(row.group for row in rows))}
    groups = torch.tensor([numbers[row.group] for row in rows])
    return cross_entropies(space.scores(*embedded), groups).mean(dim=0).tolist()
