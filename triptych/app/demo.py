"""The demo: generate synthetic data, train an embedding space, evaluate retrieval, and run a few searches."""

import random
import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from triptych.app import terminal
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.evaluation.evaluate import evaluate
from triptych.interfaces import Modality, Source
from triptych.progress import track_progress
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.scan import items_from_rows
from triptych.training.loop import train

DATASET = SyntheticConfig(scenes=3000, seed=0)


def run_demo(folder: Path, restart: bool = False) -> None:
    """Run all steps in order. Existing results in `folder` are reused unless `restart` is true."""
    started = time.monotonic()
    terminal.stdout.rule(f"1 · generate {DATASET.scenes} synthetic scenes: images, audio and captions", align="left")
    with track_progress("generating scenes", DATASET.scenes) as progress:
        pairs = generate(DATASET, folder / "data", progress.advance)
    table = manifest.read(pairs)
    held_out = table.split("test").rows
    counts = table.counts.splits
    terminal.stdout.print(", ".join(f"{name} {count}" for name, count in counts.items()))
    terminal.stdout.print(f'example: "{held_out[0].texts[0]}"')

    terminal.stdout.rule("2 · train one space for all three modalities, from scratch", align="left")
    recipe = Recipe.load("trimodal")
    recipe = replace(recipe, data=replace(recipe.data, manifest=str(pairs)))
    train(recipe, folder / "run", restart=restart)

    terminal.stdout.rule(f"3 · evaluate retrieval on {len(held_out)} held-out scenes", align="left")
    result = evaluate(load(folder / "run"), held_out)
    terminal.stdout.print(terminal.make_recall_table(result.directions))

    terminal.stdout.rule("4 · index and search the held-out files", align="left")
    if restart:
        shutil.rmtree(folder / "collection", ignore_errors=True)  # the old collection belongs to the old space
    collection = Collection(folder / "collection", folder / "run")
    collection.index(items_from_rows(held_out, collection.space), pairs)
    _run_example_searches(collection, held_out)

    terminal.stdout.rule(f"done in {time.monotonic() - started:.0f} s", align="left")
    program = "triptych" if shutil.which("triptych") else terminal.relative_path(Path(sys.argv[0]).absolute())
    terminal.stdout.print(NEXT_STEPS.format(program=shlex.quote(program), folder=shlex.quote(str(folder))))


def _run_example_searches(collection: Collection, rows: tuple[Row, ...]) -> None:
    """Search in several directions and mark hits from the scene of the query."""
    terminal.stdout.print("✓ marks hits from the same scene as the query")
    examples = random.Random(1).sample(rows, 4)  # noqa: S311 - not for security
    queries: tuple[Modality, ...] = ("text", "text", "audio", "image")
    galleries: tuple[Modality, ...] = ("image", "audio", "image", "text")
    for row, query, gallery in zip(examples, queries, galleries, strict=True):
        caption = max(row.texts, key=len)
        source = Source("text", caption) if query == "text" else source_of(row, query)
        label = f'"{caption}"' if query == "text" else f"{source.path.name}  ({caption})"
        terminal.stdout.print(f"\n{query} → {gallery}  ", style="bold", end="")
        terminal.stdout.print(label)
        positives = {str(row.image), str(row.audio), *row.texts}
        terminal.print_hits(collection.search(source, [gallery], k=3), positives)


NEXT_STEPS = """Next:
  {program} search "two red bells high up" --collection {folder}/collection
  {program} search --audio {folder}/data/audio/000007.wav --modality image --collection {folder}/collection
  {program} evaluate {folder}/run --data {folder}/data/manifest.csv --split novel
Search in the browser, with explanations and a map, at http://127.0.0.1:8765/:
  {program} serve {folder}/collection
For your own files, write a manifest (docs/manifest.md), then:
  {program} validate pairs.csv
  {program} train trimodal --data pairs.csv -o runs/mine"""
