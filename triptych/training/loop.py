"""train(): the whole method, top to bottom."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from triptych.contracts import Batch, Encoder, Modality, Objective, Similarity
from triptych.data import manifest
from triptych.data.loader import Loader, sources_of
from triptych.errors import InputError, RecipeError, TrainingError
from triptych.objectives import OBJECTIVES
from triptych.progress import progress, tell
from triptych.recipe import ObjectiveUse, Recipe
from triptych.similarities import SIMILARITIES
from triptych.space import Space
from triptych.training.run import Run


def train(recipe: Recipe, folder: str | Path, restart: bool = False, show: bool = True) -> Space:
    """Train a space on the recipe's manifest into a run folder; an interrupted run goes on where it was.

    The same recipe, seed and data give the same weights on the same machine, interrupted or not.
    """
    if not recipe.data.manifest:
        raise TrainingError("the recipe names no manifest; add data.manifest, or give --data MANIFEST")
    table = manifest.read(Path(recipe.data.manifest), recipe.data.allow_outside)
    rows = _rows_to_learn_from(table, recipe, show)
    run = Run(Path(folder), recipe, data_hash=hashlib.sha256(table.path.read_bytes()).hexdigest())
    reached = None if restart else run.reached()
    if reached:
        tell(f"{run.folder}: {reached.epochs} of {recipe.training.epochs} epochs are done already", show)

    torch.manual_seed(recipe.training.seed)
    space = reached.space if reached else Space(recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    if not reached:
        for modality, encoder in encoders.items():
            encoder.learn(s for row in rows if modality in row.modalities for s in sources_of(row, modality))
    terms = Terms(recipe)
    optimizer = _optimizer(recipe, space, terms)
    if reached:
        run.restore(reached, terms, optimizer)
    loader = _loader(recipe, rows, encoders, show)

    first_epoch, epochs, steps = (reached.epochs if reached else 0), recipe.training.epochs, loader.steps
    run.start(first_epoch)
    with progress("training", epochs * steps, show) as bar:
        bar.advance(first_epoch * steps)
        for epoch in range(first_epoch, epochs):
            # Seeded anew each epoch, so that a resumed run draws what an unbroken one would have drawn.
            torch.manual_seed(recipe.training.seed * 1_000_003 + epoch + 1)
            space.train()
            started, seen, totals, counts = time.monotonic(), 0, Counter[str](), Counter[str]()
            for step, inputs in enumerate(loader.epoch(epoch)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(recipe, epoch * steps + step, epochs * steps)
                try:
                    values = take_step(space, terms, optimizer, inputs, recipe.training.clip)
                except InputError as error:
                    raise TrainingError(
                        f"epoch {epoch + 1}, step {step + 1}: {error}; the last good epoch is kept in {run.folder}. "
                        "If numbers grew out of bounds, try a smaller training.learning_rate"
                    ) from error
                totals.update(values)
                counts.update(values.keys())
                rate = (seen := seen + len(inputs.group)) / (time.monotonic() - started)
                bar.advance(1, f"epoch {epoch + 1}/{epochs} · loss {values['loss']:.3f} · {rate:.0f} rows/s")
            run.leave_out([*map(str, table.errors), *loader.failures.values()])
            if not totals:
                raise TrainingError(loader.nothing_read())
            # Logged before it is saved: a line too many is dropped on resume, a line too few would be lost.
            means = {name: total / counts[name] for name, total in totals.items()}
            run.log(
                {"epoch": epoch + 1, "steps": counts["loss"], "seconds": round(time.monotonic() - started, 2), **means}
            )
            run.save(epoch + 1, space, terms, optimizer)
    return space.eval()


def _rows_to_learn_from(table: manifest.Manifest, recipe: Recipe, show: bool) -> Sequence[manifest.Row]:
    """The rows of the training split, or all where no row names a split; what is left out is said."""
    counts = table.counts
    if counts.unusable:
        rows = f"{counts.unusable} of {counts.rows + counts.unusable} rows"
        message = f"{rows} cannot be used; `triptych check {table.path}` says why"
        if not table.rows:
            raise TrainingError(message)
        tell(message, show)
    if counts.splits:
        return table.split(recipe.data.train).rows
    tell(f"{table.path}: no row names a split; all {counts.rows} are used to train", show)
    return table.rows


def _loader(recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder], show: bool) -> Loader:
    """Batches of the rows that give a trained pair; a pair that no row gives is said."""
    pairs = dict.fromkeys(pair for use in recipe.objectives for pair in use.pairs)
    training, data = recipe.training, recipe.data
    loader = Loader(rows, encoders, pairs, training.batch, training.seed, data.workers, data.memory_mb)
    for a, b in pairs:
        if not any(a in kind and b in kind for kind in loader.kinds):
            tell(f"no row has both {a} and {b}: that pair is not trained", show)
    return loader


def take_step(
    space: Space, terms: Terms, optimizer: torch.optim.Optimizer, batch: Batch, clip: float
) -> dict[str, float]:
    """One step down the gradient; returns every term and their sum. What is not finite is an InputError."""
    values = terms(space, batch)
    for name, value in values.items():
        if not torch.isfinite(value):
            raise InputError(f"{name} became NaN or infinite")
    loss = torch.stack(list(values.values())).sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_([*space.parameters(), *terms.parameters()], clip)
    if not torch.isfinite(norm):
        raise InputError(f"the gradient of {' + '.join(values)} holds NaN or infinity")
    optimizer.step()
    space.similarity.after_step()
    terms.after_step()
    return {name: value.item() for name, value in values.items()} | {"loss": loss.item()}


class Terms(nn.Module):
    """The recipe's objectives, one instance for each pair of modalities, as named terms over a batch."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.uses: list[tuple[str, Modality, Modality, ObjectiveUse]] = []
        self.objectives = nn.ModuleList()
        self.similarities: list[Similarity | None] = []
        for use in recipe.objectives:
            for a, b in use.pairs:
                own = use.similarity
                similarity = SIMILARITIES[own.name](**own.settings) if own else None
                if similarity and list(similarity.parameters()):
                    raise RecipeError(f"{use.name}: similarity {own} learns; only the space's own similarity may")
                name = f"{use.name}({a},{b})"
                again = sum(used.startswith(name) for used, *_ in self.uses)
                self.uses.append((f"{name}#{again + 1}" if again else name, a, b, use))
                self.objectives.append(OBJECTIVES[use.name](**use.settings))
                self.similarities.append(similarity)

    def forward(self, space: Space, batch: Batch) -> dict[str, Tensor]:
        """Every term whose two modalities are in the batch, weighted."""
        features = {m: space(m, batch.inputs[m], batch.masks[m]) for m in batch.inputs}
        values: dict[str, Tensor] = {}
        for (name, a, b, use), objective, similarity in zip(self.uses, self.objectives, self.similarities, strict=True):
            if a in features and b in features:
                try:
                    terms = objective(space.pair(features[a], features[b], batch, similarity))
                except InputError as error:
                    raise InputError(f"{name}: {error}") from error
                values |= {f"{name}.{term}": use.weight * value for term, value in terms.items()}
        return values

    def after_step(self) -> None:
        """Let each objective bring its parameters back to where they are allowed to be."""
        for objective in self.objectives:
            if isinstance(objective, Objective):
                objective.after_step()


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up over a share of the steps, then half a cosine down to zero."""
    warm = recipe.training.warmup * steps
    if step < warm:
        return recipe.training.learning_rate * (step + 1) / (warm + 1)
    return recipe.training.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, steps - warm)))


def _optimizer(recipe: Recipe, space: Space, terms: Terms) -> torch.optim.Optimizer:
    """AdamW; only what has two dimensions or more decays, not biases, norms or temperatures."""
    parameters = [p for p in [*space.parameters(), *terms.parameters()] if p.requires_grad]
    decayed = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.training.learning_rate,
    )
