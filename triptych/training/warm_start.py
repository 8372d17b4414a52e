"""Train from a ready space: a joint model, the starter space or the space of a run.

Each head becomes a residual head (`heads/residual.py`), so that the space before the first step is the ready space. A
penalty holds the heads near this start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from torch import Tensor

from triptych import checkpoint
from triptych.data.features import CachedFeatures
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.errors import RecipeError
from triptych.heads.residual import ResidualHead
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import ObjectiveConfig, Recipe, TrainingConfig
from triptych.space import Space

NAME = "warm_start"  # the name of the default recipe, and of its run folder
MIN_STEPS = 150  # steps of the default recipe; bench/few_pairs.py compares other numbers


def make_recipe(init: str) -> Recipe:
    """Return the default recipe of a ready space: InfoNCE on every pair of its modalities, encoders frozen."""
    space = checkpoint.load(init, device="cpu")
    modalities: list[Modality] = [m for m in MODALITIES if m in space.modalities]
    pairs = tuple(combinations(modalities, 2))
    if not pairs:
        raise RecipeError(f"init = {init}: the space has only {', '.join(space.modalities)}; need two modalities")
    training = TrainingConfig(
        epochs=15, batch_size=512, learning_rate=1e-3, weight_decay=0.0, eval_every=0, min_steps=MIN_STEPS, init=init
    )
    objective = ObjectiveConfig("infonce", pairs, settings={"temperature": 0.07})
    description = "A ready space whose heads are trained on pairs and held near their start."
    recipe = Recipe(NAME, space.recipe.space, (objective,), description, training=training)
    return Recipe.parse(_adopt(recipe, space).to_toml(), location=f"init = {init}")


def adopt_init(recipe: Recipe) -> Recipe:
    """Return the recipe with the architecture of the space `training.init`, if it is set."""
    return _adopt(recipe, checkpoint.load(recipe.training.init, device="cpu")) if recipe.training.init else recipe


def _adopt(recipe: Recipe, space: Space) -> Recipe:
    ready = space.recipe.space
    trained = {m for config in recipe.objectives for pair in config.pairs for m in pair}
    if not trained & set(space.modalities):
        expected, available = ", ".join(sorted(trained)), ", ".join(space.modalities)
        raise RecipeError(f"init = {recipe.training.init}: the space has {available}; the recipe trains {expected}")
    frozen = [("encoders", space.encoders), ("shared_head", space.shared_head), ("similarity", space.similarity)]
    prefixes = [name for name, module in frozen if next(module.parameters(), None) is not None]
    freeze = tuple(dict.fromkeys([*recipe.training.freeze, *prefixes]))
    recipe = replace(recipe, space=replace(ready, residual=True), training=replace(recipe.training, freeze=freeze))
    return recipe.restrict_to(space.modalities)


def build_space(recipe: Recipe) -> Space:
    """Build the space of a recipe with the weights of the ready space `training.init`."""
    ready = checkpoint.load(recipe.training.init, device="cpu")
    space = Space(recipe, {m: ready.encoder(m) for m in ready.modalities})
    space.shared_head.load_state_dict(ready.shared_head.state_dict())
    space.similarity.load_state_dict(ready.similarity.state_dict())
    for modality, head in residual_heads(space).items():
        start = ready.heads[modality]
        if isinstance(start, ResidualHead):  # train on from the weights of an earlier warm start
            head.load_state_dict(start.state_dict())
            head.initial.copy_(head.correction.detach())
        else:
            head.start.load_state_dict(start.state_dict())
    return space


def residual_heads(space: Space) -> dict[Modality, ResidualHead]:
    """Return the residual heads of a space."""
    return {m: head for m in space.modalities if isinstance(head := space.heads[m], ResidualHead)}


def standardise_heads(space: Space, rows: Sequence[Row], features: Mapping[Modality, CachedFeatures]) -> None:
    """Set the scale of the new residual heads from the features of the training rows."""
    for modality, head in residual_heads(space).items():
        if modality not in features or head.correction.any():
            continue
        known = features[modality].index_of
        sources = dict.fromkeys(s for row in rows if modality in row.modalities for s in sources_of(row, modality))
        indices = [known[source] for source in sources if source in known]
        if indices:
            pooled = features[modality].pooled[indices]  # (K, 2, feature_dim)
            head.standardise(pooled.flatten(1) if space.recipe.space.pooling == "mean_max" else pooled[:, 0])


def reset_heads(space: Space) -> None:
    """Set the residual heads to their start."""
    for head in residual_heads(space).values():
        head.reset()


def set_hold(space: Space, hold: float) -> None:
    """Set the weight of the penalty of all residual heads; inf: the heads are not trained."""
    for head in residual_heads(space).values():
        head.hold.fill_(hold)


def read_hold(space: Space) -> float:
    """Return the weight of the penalty; 0 for a space without residual heads."""
    return max((head.hold.item() for head in residual_heads(space).values()), default=0.0)


def keeps_ready_space(space: Space) -> bool:
    """Return whether the space is a ready space that is not trained, because its hold is infinite."""
    return bool(residual_heads(space)) and math.isinf(read_hold(space))


def hold_terms(space: Space) -> dict[str, Tensor]:
    """Return the penalties that keep the heads near their start, as loss terms."""
    heads = residual_heads(space)
    return {f"hold.{m}": head.hold * head.penalty() for m, head in heads.items() if 0 < head.hold < math.inf}


def count_pairs(rows: Sequence[Row], recipe: Recipe) -> int:
    """Return the number of rows that have both modalities of a trained pair."""
    pairs = {pair for config in recipe.objectives for pair in config.pairs}
    return sum(any(a in row.modalities and b in row.modalities for a, b in pairs) for row in rows)


def raise_epochs(recipe: Recipe, rows: Sequence[Row]) -> Recipe:
    """Return the recipe with at least as many epochs as `training.min_steps` needs."""
    training = recipe.training
    steps_per_epoch = max(1, count_pairs(rows, recipe) // training.batch_size)
    epochs = max(training.epochs, math.ceil(training.min_steps / steps_per_epoch))
    return replace(recipe, training=replace(training, epochs=epochs))
