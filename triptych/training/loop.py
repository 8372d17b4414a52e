"""train(): the whole method, top to bottom."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from triptych.contracts import Encoder, Modality, Source
from triptych.data import manifest
from triptych.data.cache import Cache, cache_of
from triptych.data.features import Remembered, remember
from triptych.data.loader import Loader, source_of, sources_of
from triptych.encoders import ENCODERS
from triptych.errors import InputError, TrainingError
from triptych.progress import Bar, progress, tell
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.optimizer import optimizer_of, set_rates
from triptych.training.rows import learnable, windowed
from triptych.training.run import Run
from triptych.training.step import take_step
from triptych.training.terms import Terms
from triptych.training.validation import Standing, score


def train(recipe: Recipe, folder: str | Path, restart: bool = False, show: bool = True) -> Space:
    """Train a space on the recipe's manifests into a run folder; an interrupted run goes on where it was.

    The same recipe, seed and data give the same weights on the same machine, interrupted or not. Where rows are kept
    for validation, the space of the best epoch is returned and saved for use, else that of the last.
    """
    data = learnable(recipe, show)
    there: set[Modality] = {m for row in data.train for m in row.modalities}
    for modality in recipe.space.encoders:
        if modality not in there:
            tell(f"no row has {modality}: the space will not know it", show)
    recipe = recipe.only(there)
    run = Run(Path(folder), recipe, data.hash)
    reached = None if restart else run.reached()
    if reached:
        tell(f"{run.folder}: {reached.epochs} of {recipe.training.epochs} epochs are done already", show)

    torch.manual_seed(recipe.training.seed)
    space = reached.space if reached else Space(recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    if not reached:
        for modality, encoder in encoders.items():
            encoder.learn(s for row in data.train if modality in row.modalities for s in sources_of(row, modality))
    rows = data.train
    if recipe.data.windows and "audio" in encoders and math.isfinite(encoders["audio"].seconds):
        rows = windowed(rows, encoders["audio"].seconds, recipe.data.hop)
    terms = Terms(recipe)
    optimizer = optimizer_of(recipe, space, terms)
    if reached:
        run.restore(reached, terms, optimizer)
    standing = reached.standing if reached else Standing()
    loader = _loader(recipe, rows, encoders, terms.reads_parts(space), show)

    first_epoch, epochs, steps = (reached.epochs if reached else 0), recipe.training.epochs, loader.steps
    run.start(first_epoch)
    with progress("training", epochs * steps, show) as bar:
        bar.advance(first_epoch * steps)
        for epoch in range(first_epoch, epochs):
            if standing.is_over(recipe.training.patience):
                break
            started = time.monotonic()
            means = _learn(space, terms, optimizer, loader, epoch, bar, f"{standing}")
            run.leave_out([*data.unusable, *loader.failures.values()])
            if data.valid and recipe.training.validate and (epoch + 1) % recipe.training.validate == 0:
                means["valid"] = score(space, data.valid, recipe)
                standing = standing.after(means["valid"])
            # Logged before it is saved: a line too many is dropped on resume, a line too few would be lost.
            run.log({"epoch": epoch + 1, "seconds": round(time.monotonic() - started, 2), **means})
            run.save(epoch + 1, space, terms, optimizer, standing)
    return run.best(space)


def _learn(
    space: Space, terms: Terms, optimizer: torch.optim.Optimizer, loader: Loader, epoch: int, bar: Bar, standing: str
) -> dict[str, float]:
    """One epoch: a step down the gradient for every batch. Returns the mean of every term, and how many steps."""
    recipe, steps = space.recipe, loader.steps
    training = recipe.training
    # Seeded anew each epoch, so that a resumed run draws what an unbroken one would have drawn.
    torch.manual_seed(training.seed * 1_000_003 + epoch + 1)
    space.train()
    started, seen, totals, counts = time.monotonic(), 0, Counter[str](), Counter[str]()
    for step, batch in enumerate(loader.epoch(epoch)):
        set_rates(optimizer, recipe, epoch * steps + step, training.epochs * steps)
        try:
            values = take_step(space, terms, optimizer, batch, training)
        except InputError as error:
            raise TrainingError(
                f"epoch {epoch + 1}, step {step + 1}: {error}; the last good epoch is kept. "
                "If numbers grew out of bounds, try a smaller training.learning_rate"
            ) from error
        totals.update(values)
        counts.update(values.keys())
        rate = (seen := seen + len(batch.group)) / (time.monotonic() - started)
        bar.advance(1, f"epoch {epoch + 1}/{training.epochs} · loss {values['loss']:.3f} · {rate:.0f} rows/s{standing}")
    if not totals:
        raise TrainingError(loader.nothing_read())
    return {"steps": counts["loss"]} | {name: total / counts[name] for name, total in totals.items()} | terms.state()


def _loader(
    recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder], parts: bool, show: bool
) -> Loader:
    """Batches of the rows that give a trained pair; a pair that no row gives is said."""
    pairs = dict.fromkeys(pair for use in recipe.objectives for pair in use.pairs)
    training, data = recipe.training, recipe.data
    known = _known(recipe, rows, encoders, show)
    loader = Loader(
        rows,
        encoders,
        pairs,
        training.batch,
        training.seed,
        data.workers,
        data.memory_mb,
        known,
        parts,
        data.weights,
        taught(recipe, rows, show),
    )
    for a, b in pairs:
        if not any(a in kind and b in kind for kind in loader.kinds):
            tell(f"no row has both {a} and {b}: that pair is not trained", show)
    return loader


def taught(recipe: Recipe, rows: Sequence[manifest.Row], show: bool) -> dict[Source, Tensor]:
    """The teacher's class probabilities for every picture, in half precision; nothing where there is no teacher."""
    if not recipe.data.teacher:
        return {}
    teacher, cache = ENCODERS[recipe.data.teacher](), cache_of(recipe.data.cache) or Cache.default()
    sources = [source_of(row, "image") for row in rows if "image" in row.modalities]
    with progress("the teacher's view", len(dict.fromkeys(sources)), show) as bar:
        known = remember(teacher, sources, cache, recipe.data.workers, bar)
    with torch.inference_mode():
        said = teacher.judge(known.pooled[:, 0])
    if said is None:
        raise TrainingError(f"data.teacher: {recipe.data.teacher} was not taught classes")
    return dict(zip(known.place, said.half(), strict=True))


def _known(
    recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder], show: bool
) -> dict[Modality, Remembered]:
    """What frozen encoders make of all rows, from the cache where it is there."""
    cache = cache_of(recipe.data.cache)
    known = {}
    for modality, encoder in encoders.items():
        if cache and encoder.frozen:
            sources = [s for row in rows if modality in row.modalities for s in sources_of(row, modality)]
            with progress(f"features of {modality}", len(dict.fromkeys(sources)), show) as bar:
                known[modality] = remember(encoder, sources, cache, recipe.data.workers, bar)
    return known
