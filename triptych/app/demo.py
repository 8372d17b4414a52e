"""The demo: a small world, a space trained on it, its recall, and a few searches. Everything once, in order."""

from __future__ import annotations

import random
import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from triptych.app import show
from triptych.checkpoint import load
from triptych.contracts import Modality, Source
from triptych.data import manifest
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.data.world import World, make
from triptych.evaluation.evaluate import evaluate
from triptych.progress import progress
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.items import items_of
from triptych.training.loop import train

WORLD = World(scenes=3000, seed=0)


def run(folder: Path, again: bool = False) -> None:
    """Make, train, measure, index, search; a second call reuses what is there."""
    started = time.monotonic()
    show.out.rule(f"1 · a small world of {WORLD.scenes} scenes: pictures, sounds and captions", align="left")
    with progress("making scenes", WORLD.scenes) as bar:
        pairs = make(WORLD, folder / "world", progress=lambda done, _: bar.advance(done - bar.done))
    table = manifest.read(pairs)
    held_out = table.split("test").rows
    counts = table.counts.splits
    show.out.print(", ".join(f"{name} {count}" for name, count in counts.items()))
    show.out.print(f'for example: "{held_out[0].texts[0]}"')

    show.out.rule("2 · one space for all three, trained from scratch", align="left")
    recipe = Recipe.load("trimodal")
    recipe = replace(recipe, data=replace(recipe.data, manifest=str(pairs)))
    train(recipe, folder / "run", restart=again)

    show.out.rule(f"3 · does it find what belongs together? {len(held_out)} held-out scenes", align="left")
    result = evaluate(load(folder / "run"), held_out)
    show.out.print(show.recalls(result.directions))

    show.out.rule("4 · search the held-out files", align="left")
    if again:
        shutil.rmtree(folder / "collection", ignore_errors=True)  # of the space that was there before
    collection = Collection.create(folder / "collection", folder / "run")
    collection.index(items_of(held_out, collection.space), pairs)
    _search(collection, held_out)

    show.out.rule(f"done in {time.monotonic() - started:.0f} s", align="left")
    program = "triptych" if shutil.which("triptych") else show.from_here(Path(sys.argv[0]).absolute())
    show.out.print(_NEXT.format(program=shlex.quote(program), folder=shlex.quote(str(folder))))


def _search(collection: Collection, rows: tuple[Row, ...]) -> None:
    """Queries in different directions; a hit is marked where it is the very scene the query came from."""
    show.out.print("✓ marks the very scene that was asked for")
    picks = random.Random(1).sample(rows, 4)  # noqa: S311 - a fixed choice of examples, nothing secret
    directions: list[tuple[Modality, Modality]] = [
        ("text", "image"),
        ("text", "audio"),
        ("audio", "image"),
        ("image", "text"),
    ]
    for row, (query, want) in zip(picks, directions, strict=True):
        words = max(row.texts, key=len)
        source = Source("text", words) if query == "text" else source_of(row, query)
        said = f'"{words}"' if query == "text" else f"{Path(source.content).name}  ({words})"
        show.out.print(f"\n{query} → {want}  ", style="bold", end="")
        show.out.print(said)
        right = {str(row.image), str(row.audio), *row.texts}
        show.hits(collection.search(source, [want], k=3), right)


_NEXT = """Next:
  {program} search "two red bells high up" --in {folder}/collection
  {program} search --sound {folder}/world/sounds/000007.wav --want picture --in {folder}/collection
  {program} evaluate {folder}/run --data {folder}/world/manifest.csv --split novel
The same in the browser, with reasons for every hit and a map, at http://127.0.0.1:8765/ as long as this runs:
  {program} serve {folder}/collection
Your own files: write down what belongs together as in docs/manifest.md, then
  {program} check pairs.csv
  {program} train trimodal --data pairs.csv -o runs/mine"""
