"""train(): the whole method, top to bottom."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from triptych.training.distributed import ALONE, Team, refuse_batch_norm, together
from triptych.training.environment import environment
from triptych.training.optimizer import optimizer_of, set_rates
from triptych.training.rows import Rows, learnable, windowed
from triptych.training.run import Progress, Run
from triptych.training.step import in_words, refuse_explosion, take_step
from triptych.training.terms import Terms
from triptych.training.validation import Standing, can_judge, score


def train(recipe: Recipe, folder: str | Path, restart: bool = False, show: bool = True) -> Space:
    """Train a space on the recipe's manifests into a run folder; an interrupted run goes on where it was.

    The same recipe, seed and data give the same weights on the same machine, interrupted or not. Where rows are kept
    for validation, the space of the best epoch is returned and saved for use, else that of the last. Started by
    torchrun, the processes share the encoding of every batch, and the first of them writes.
    """
    with together() as team:
        show = show and team.leads
        data = learnable(recipe, show)
        recipe = _for_what_is_there(recipe, data.train, show)
        if data.valid and not can_judge(data.valid, recipe):
            tell(f"no row of split {recipe.data.valid} has a pair that is trained: the last epoch will be kept", show)
            data = replace(data, valid=())
        run = Run(Path(folder), recipe, data, team.leads)
        with run.claimed():
            reached = None if restart else run.reached()
            if reached:
                tell(f"{run.folder}: {reached.epochs} of {recipe.training.epochs} epochs are done already", show)
            return _train(recipe, data, run, reached, team, show)


def _train(recipe: Recipe, data: Rows, run: Run, reached: Progress | None, team: Team, show: bool) -> Space:
    """The method: a space, its objectives, their optimizer and the batches; then epoch by epoch."""
    torch.manual_seed(recipe.training.seed)
    space = reached.space if reached else Space(recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    if not reached:
        for modality, encoder in encoders.items():
            encoder.learn(s for row in data.train if modality in row.modalities for s in sources_of(row, modality))
    terms = Terms(recipe)
    space.to(team.device)
    terms.to(team.device)
    optimizer = optimizer_of(recipe, space, terms)
    if reached:
        run.restore(reached, terms, optimizer)
    standing = reached.standing if reached else Standing()
    run.check_room(space, terms, optimizer)
    team.agree([space, terms])
    refuse_batch_norm(space.train(), recipe, team)
    loader = _loader(recipe, _windows(recipe, data.train, encoders), encoders, terms.reads_parts(space), team, show)

    first_epoch, epochs, steps = (reached.epochs if reached else 0), recipe.training.epochs, loader.steps
    if first_epoch != team.told(first_epoch):
        raise TrainingError(f"{run.folder}: is not the same folder for every process; give one that all of them see")
    run.start(first_epoch, environment(team.count, team.device))
    with progress("training", epochs * steps, show) as bar:
        bar.advance(first_epoch * steps)
        for epoch in range(first_epoch, epochs):
            if standing.is_over(recipe.training.patience):
                break
            started = time.monotonic()
            means = _learn(space, terms, optimizer, loader, epoch, run, team, bar, f"{standing}")
            if _to_be_judged(epoch, recipe, data):
                means["valid"] = team.told(score(space, data.valid, recipe) if team.leads else 0.0)
                standing = standing.after(means["valid"])
            else:
                standing = standing.unlooked()
            left_out = [*data.unusable, *team.texts(loader.failures.values())]
            metrics = {"epoch": epoch + 1, "seconds": round(time.monotonic() - started, 2), **means}
            run.keep(metrics, left_out, space, terms, optimizer, standing)
    team.wait()
    return run.finish(space)


def _to_be_judged(epoch: int, recipe: Recipe, data: Rows) -> bool:
    """Whether the validation rows are looked at after this epoch: every so many, and the last."""
    training = recipe.training
    due = training.validate > 0 and ((epoch + 1) % training.validate == 0 or epoch + 1 == training.epochs)
    return due and bool(data.valid)


def _learn(
    space: Space,
    terms: Terms,
    optimizer: torch.optim.Optimizer,
    loader: Loader,
    epoch: int,
    run: Run,
    team: Team,
    bar: Bar,
    standing: str,
) -> dict[str, float]:
    """One epoch: a step down the gradient for every batch. Returns the mean of every term, and how many steps."""
    recipe, steps = space.recipe, loader.steps
    training = recipe.training
    # Seeded anew each epoch, so that a resumed run draws what an unbroken one would have drawn.
    team.seed(training.seed * 1_000_003 + epoch + 1)
    space.train()
    started, seen, totals, counts = time.monotonic(), 0, Counter[str](), Counter[str]()
    first: dict[str, float] = {}
    for step, batch in enumerate(loader.epoch(epoch)):
        set_rates(optimizer, recipe, epoch * steps + step, training.epochs * steps)
        try:
            values = take_step(space, terms, optimizer, batch.to(team.device), training, team)
            first = values | first
            refuse_explosion(values, first)
        except InputError as error:
            raise run.stop(f"epoch {epoch + 1}, step {step + 1}: {error}", batch.rows) from error
        totals.update(values)
        counts.update(values.keys())
        rate = (seen := seen + team.count * len(batch.group)) / (time.monotonic() - started)
        bar.advance(1, f"epoch {epoch + 1}/{training.epochs} · {in_words(values)} · {rate:.0f} pairs/s{standing}")
    if not totals:
        raise TrainingError(loader.nothing_read())
    return {"steps": counts["loss"]} | {name: total / counts[name] for name, total in totals.items()} | terms.state()


def _for_what_is_there(recipe: Recipe, rows: Sequence[manifest.Row], show: bool) -> Recipe:
    """The recipe without the modalities that no row has; that is said."""
    there: set[Modality] = {m for row in rows for m in row.modalities}
    for modality in recipe.space.encoders:
        if modality not in there:
            tell(f"no row has {modality}: the space will not know it", show)
    return recipe.only(there)


def _windows(
    recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder]
) -> Sequence[manifest.Row]:
    """The rows, or a row for every window of their sounds, where the recipe wants that."""
    if recipe.data.windows and "audio" in encoders and math.isfinite(encoders["audio"].seconds):
        return windowed(rows, encoders["audio"].seconds, recipe.data.hop)
    return rows


def _loader(
    recipe: Recipe,
    rows: Sequence[manifest.Row],
    encoders: Mapping[Modality, Encoder],
    parts: bool,
    team: Team,
    show: bool,
) -> Loader:
    """Batches of the rows that give a trained pair; a pair that no row gives is said."""
    pairs = dict.fromkeys(pair for use in recipe.objectives for pair in use.pairs)
    training, data = recipe.training, recipe.data
    loader = Loader(
        rows,
        encoders,
        pairs,
        training.batch,
        training.seed,
        data.workers,
        data.memory_mb,
        known=_known(recipe, rows, encoders, team, show),
        parts=parts,
        weights=data.weights,
        teacher=taught(recipe, rows, show, team),
        part=(team.rank, team.count),
        total=team.total,
    )
    for a, b in pairs:
        if not any(a in kind and b in kind for kind in loader.kinds):
            tell(f"no row has both {a} and {b}: that pair is not trained", show)
    return loader


def taught(recipe: Recipe, rows: Sequence[manifest.Row], show: bool, team: Team = ALONE) -> dict[Source, Tensor]:
    """The teacher's class probabilities for every picture, in half precision; nothing where there is no teacher."""
    if not recipe.data.teacher:
        return {}
    teacher, cache = ENCODERS[recipe.data.teacher](), cache_of(recipe.data.cache) or Cache.default()
    sources = [source_of(row, "image") for row in rows if "image" in row.modalities]
    known = _remembered(teacher.to(team.device), sources, cache, recipe, "the teacher's view", team, show)
    with torch.inference_mode():
        said = teacher.cpu().judge(known.pooled[:, 0])
    if said is None:
        raise TrainingError(f"data.teacher: {recipe.data.teacher} was not taught classes")
    return dict(zip(known.place, said.half(), strict=True))


def _known(
    recipe: Recipe, rows: Sequence[manifest.Row], encoders: Mapping[Modality, Encoder], team: Team, show: bool
) -> dict[Modality, Remembered]:
    """What frozen encoders make of all rows, from the cache where it is there."""
    cache = cache_of(recipe.data.cache)
    known = {}
    for modality, encoder in encoders.items():
        if cache and encoder.frozen:
            sources = [s for row in rows if modality in row.modalities for s in sources_of(row, modality)]
            known[modality] = _remembered(encoder, sources, cache, recipe, f"features of {modality}", team, show)
    return known


def _remembered(
    encoder: Encoder, sources: Sequence[Source], cache: Cache, recipe: Recipe, title: str, team: Team, show: bool
) -> Remembered:
    """The features of all sources; of several processes, each computes its share of what the cache lacks."""
    with progress(title, len(dict.fromkeys(sources)), show) as bar:
        if team.count > 1:
            remember(encoder, sources[team.rank :: team.count], cache, recipe.data.workers)
            team.wait()
        return remember(encoder, sources, cache, recipe.data.workers, bar)
