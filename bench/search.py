"""Searching: lists beside an exact NumPy scan, opening, filters, ingest, kills, and what the made world finds."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from triptych import checkpoint
from triptych.app import show
from triptych.contracts import Modality, Source
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.manifest import Row
from triptych.data.world import World, make
from triptych.data.world.truth import read_truth
from triptych.evaluation.localisation import localise
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.index import nearest
from triptych.search.items import items_of
from triptych.search.lease import write_access
from triptych.search.query import Part, Query, Where
from triptych.search.relevance import RELEVANT
from triptych.search.store import FACTS, Note
from triptych.search.writer import Writer
from triptych.space import Space
from triptych.training.loop import train

WIDTH, QUERIES, AMONG = 256, 200, 10
CLUSTERS, NOISE = 2000, 0.8
KILLS = 20
THINGS = ("bee", "bell", "bird", "clock", "drum", "frog", "horn", "whistle")
SHOWN: tuple[Modality, ...] = ("image", "audio")


def main(cases: Sequence[str] = ("speed", "world", "ingest", "kills")) -> None:
    """Run the cases named: speed, world, ingest, kills."""
    for case in cases:
        {"speed": speed, "world": world, "ingest": ingest, "kills": kills}[case]()


def speed() -> None:
    """200,000 and 1,000,000 vectors: recall, time of a query beside NumPy's exact scan, filters, opening."""
    for count in (200_000, 1_000_000):
        with tempfile.TemporaryDirectory() as place:
            _speed(count, Path(place))


def _speed(count: int, place: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, WIDTH)).astype(np.float32)
    keys, queries = (_clustered(rng, centres, number) for number in (count, QUERIES))
    started = time.perf_counter()
    _made(place / "collection", place / "space.safetensors", keys)
    built = time.perf_counter() - started
    opened = _timed(lambda _: Collection.open(place / "collection"), 5)
    collection = Collection.open(place / "collection")
    gallery = collection._gallery(collection._version(), "image")
    half = Where(longer=5.0)
    allowed = collection._matching(collection._version(), half.sql)
    started = time.perf_counter()
    collection.search(Query((Part(_id(0)),)), ["image"], where=half)
    cold = time.perf_counter() - started
    exact = [set(nearest(query, keys, AMONG)[0].tolist()) for query in queries]
    found = [gallery.nearest(query, AMONG)[0] for query in queries]
    recall = statistics.mean(len(set(a.tolist()) & b) / AMONG for a, b in zip(found, exact, strict=True))
    items = [Query((Part(_id(i)),)) for i in range(QUERIES)]
    sides: dict[str, Callable[[int], object]] = {
        "exact NumPy scan": lambda i: nearest(queries[i], keys, AMONG),
        "lists": lambda i: gallery.nearest(queries[i], AMONG),
        "lists, half filtered out": lambda i: gallery.nearest(queries[i], AMONG, allowed.condition, allowed.numbers),
        "whole search by an item": lambda i: collection.search(items[i], ["image"], AMONG),
        "whole search, filtered": lambda i: collection.search(items[i], ["image"], AMONG, half),
    }
    times = {name: _timed(work, 40) for name, work in sides.items()}
    scan = statistics.median(times["exact NumPy scan"])
    print(
        f"{count:,} × {WIDTH}: written and sorted in {built:.0f} s; opened in {statistics.median(opened):.2f} s; share "
        f"of keys looked at {gallery.lists.share if gallery.lists else 1:g}; recall@{AMONG} {recall:.3f}; "
        f"the first search, with a new filter, {1000 * cold:.0f} ms",
        flush=True,
    )
    for name, seconds in times.items():
        middle, ratio = statistics.median(seconds), statistics.median(seconds) / scan
        quick, slow = np.quantile(seconds, [0.1, 0.9])
        print(
            f"  {name:26} p50 {1000 * middle:7.2f} ms (10–90%: {1000 * quick:.2f}–{1000 * slow:.2f})  "
            f"{ratio:.4f} of the scan = 1/{1 / ratio:.0f}",
            flush=True,
        )


def _timed(work: Callable[[int], object], count: int) -> list[float]:
    for i in range(5):
        work(i)
    found = []
    for i in range(count):
        started = time.perf_counter()
        work(i % QUERIES)
        found.append(time.perf_counter() - started)
    return found


def _clustered(rng: np.random.Generator, centres: np.ndarray, count: int) -> np.ndarray:
    keys = centres[rng.integers(0, len(centres), count)]
    keys += NOISE * rng.standard_normal(keys.shape, np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def _id(number: int) -> str:
    return f"{number:016x}"


def _made(folder: Path, space_path: Path, keys: np.ndarray) -> None:
    """A collection of so many pictures that were never made, with these keys."""
    space = Space(Recipe.load("trimodal", [f"space.width={WIDTH}"]))
    space.encoder("text").learn([Source("text", "a bell and a frog")])
    checkpoint.save(space.eval(), space_path)
    with write_access(str(folder)) as access:
        note = Note(str(space_path), checkpoint.fingerprint(space_path))
        _write(Writer.create(str(folder), note, WIDTH, access), keys)
    Collection.open(folder)._sort_into_lists()


def _write(writer: Writer, keys: np.ndarray) -> None:
    block, schema = 100_000, writer.store.schema
    for first in range(0, len(keys), block):
        some = keys[first : first + block]
        numbers = range(first, first + len(some))
        texts = {
            "id": [_id(i) for i in numbers],
            "modality": ["image"] * len(some),
            "file": [f"/pictures/{i % 100:02}/{i}.png" for i in numbers],
            "content": [_id(i) for i in numbers],
            "facts": [""] * len(some),
        }
        columns: dict[str, pa.Array] = {name: pa.array(values, pa.string()) for name, values in texts.items()}
        columns["number"] = pa.array(numbers, pa.int64())
        columns["origins"] = pa.array([["/pictures"]] * len(some), pa.list_(pa.string()))
        columns["duration"] = pa.array([float(i % 10) for i in numbers], pa.float64())
        columns["date"] = pa.array([float(i) for i in numbers], pa.float64())
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(some.ravel()), WIDTH)
        for field in schema:
            columns.setdefault(field.name, pa.nulls(len(some), field.type))
        writer.add(pa.table({field.name: columns[field.name] for field in schema}))
    writer.tidy()


def world() -> None:
    """The demo's space, trained in full: do words for a held-out thing find it, and is it said when nothing matches?"""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = make(World(scenes=3000, seed=0), folder / "world")
        train(Recipe.load("trimodal", [f"data.manifest={pairs}"]), folder / "run", show=False)
        measure_world(pairs, folder / "run", folder)
        show.out.print(show.localisations(localise(checkpoint.load(folder / "run"), pairs.parent, show=False)))


def measure_world(pairs: Path, run: Path, folder: Path) -> None:
    """Print the shares for a world and a space trained on it."""
    rows = manifest.read(pairs).split("test").rows
    truths = {truth.id: truth for truth in read_truth(pairs.parent)}
    things = {row.id: {p.actor.thing for p in truths[row.id].performers} for row in rows}
    collection = Collection.create(folder / "all", run)
    collection.index(items_of(rows, collection.space), pairs, show=False)
    for modality in SHOWN:
        found = [_top(collection, max(row.texts, key=len), modality) for row in rows]
        any_thing = [bool(things[row.id] & things[ids[0]]) for row, ids in zip(rows, found, strict=True)]
        top5 = [any(things[row.id] <= things[name] for name in ids) for row, ids in zip(rows, found, strict=True)]
        scene = [row.id in ids for row, ids in zip(rows, found, strict=True)]
        named = [_top(collection, f"a {thing}", modality) for thing in THINGS]
        plain = [any(thing in things[name] for name in ids) for thing, ids in zip(THINGS, named, strict=True)]
        shares = [f"{100 * np.mean(some):.1f}%" for some in (top5, any_thing, scene)]
        print(
            f"text → {modality}: of {len(rows)} held-out captions {shares[0]} have all their things in one of the "
            f"top 5, {shares[1]} one of them in the first, {shares[2]} the very scene in the top 5; 'a THING' has it "
            f"in the top 5 for {sum(plain)} of {len(THINGS)} things",
            flush=True,
        )
    _say_when_nothing_matches(collection, rows, things, folder, pairs)


def _top(collection: Collection, words: str, modality: Modality) -> list[str]:
    return [hit.columns["id"][0] for hit in collection.search(Source("text", words), [modality], k=5)]


def _say_when_nothing_matches(
    collection: Collection, rows: Sequence[Row], things: dict[str, set[str]], folder: Path, pairs: Path
) -> None:
    """Captions about one thing, asked of everything, and of a collection from which that thing was taken out."""
    above: dict[tuple[str, bool], list[bool]] = {}
    for thing in THINGS:
        left = Collection.create(folder / f"without-{thing}", collection.space_path)
        left.index(items_of([r for r in rows if thing not in things[r.id]], left.space), pairs, show=False)
        asked = [max(row.texts, key=len) for row in rows if things[row.id] == {thing}][:20]
        for modality in SHOWN:
            for there, where in ((True, collection), (False, left)):
                for words in asked:
                    first = where.search(Source("text", words), [modality], k=1)[0]
                    above.setdefault((modality, there), []).append(first.relevance >= RELEVANT)
    for modality in SHOWN:
        kept, refused = (np.mean(above[modality, there]) for there in (True, False))
        print(
            f"text → {modality}: the first hit is above the line for {100 * kept:.0f}% of captions whose thing is "
            f"there, for {100 * refused:.0f}% of those whose thing was taken out",
            flush=True,
        )


def ingest() -> None:
    """Which share of indexing is the encoder's, and which the store's."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = make(World(scenes=1000, seed=1), folder / "world")
        run = _quick(pairs, folder)
        for name in ("a new collection", "the same again"):
            collection = Collection.create(folder / "collection", run)
            collection.cache = Cache(folder / "cache")
            started = time.perf_counter()
            done = collection.index(items_of(manifest.read(pairs).rows, collection.space), pairs, show=False)
            whole = time.perf_counter() - started
            shares = ", ".join(f"{what} {100 * t / whole:.0f}%" for what, t in done.seconds.items())
            print(f"{name}: {done.added} added, {done.kept} kept in {whole:.1f} s: {shares}", flush=True)


def kills() -> None:
    """SIGKILL during `triptych index` at random moments, then resume: the same as one built in peace?"""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = make(World(scenes=2000, seed=2), folder / "world")
        run = _quick(pairs, folder)
        started = time.perf_counter()
        _index(pairs.parent, run, folder / "peace", folder / "cache-peace").wait()
        whole = time.perf_counter() - started
        peace, same = contents(folder / "peace"), list[bool]()
        rng, stored = np.random.default_rng(0), list[int]()
        while len(stored) < KILLS:
            is_new, started = not (folder / "war").exists(), time.perf_counter()
            child = _index(pairs.parent, run, folder / "war", folder / "cache-war")
            try:
                # Half of it is loading libraries, where there is nothing to lose: more of the kills fall later.
                child.wait(rng.uniform(0.3, 1.0) * whole)
                whole = time.perf_counter() - started if is_new else whole  # the machine is less busy than it was
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                stored.append(len(Collection.open(folder / "war")) if (folder / "war" / "items.lance").exists() else 0)
            if (folder / "war" / "items.lance").exists() and len(Collection.open(folder / "war")) == len(peace[0]):
                same.append(_is_same(contents(folder / "war"), peace))
                shutil.rmtree(folder / "war")  # nothing is left to do: begin again
                shutil.rmtree(folder / "cache-war")
        _index(pairs.parent, run, folder / "war", folder / "cache-war").wait()
        same.append(_is_same(contents(folder / "war"), peace))
        print(
            f"killed {KILLS} times, with {stored} of {len(peace[0])} items stored; {len(same)} times it came to its "
            f"end, {sum(same)} times as one built in peace"
        )


def contents(folder: Path) -> tuple[list[list[object]], np.ndarray]:
    """Everything a collection holds, without the order in which it came: facts, and vectors (N, S)."""
    collection = Collection.open(folder)
    rows = collection.store.rows([*FACTS, "vector"]).to_pylist() if collection.store else []
    rows.sort(key=lambda row: row["id"])
    assert len({row["id"] for row in rows}) == len(rows)
    keep = [name for name in FACTS if name != "number"]
    return [[row[name] for name in keep] for row in rows], np.array([row["vector"] for row in rows])


def _is_same(one: tuple[list[list[object]], np.ndarray], other: tuple[list[list[object]], np.ndarray]) -> bool:
    """A vector may differ in its last digits with what stood beside it in a batch."""
    return one[0] == other[0] and bool(np.allclose(one[1], other[1], rtol=0, atol=1e-5))


def _index(what: Path, run: Path, into: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "triptych", "index", str(what), "--space", str(run), "--into", str(into)]
    environment = os.environ | {"TRIPTYCH_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def _quick(pairs: Path, folder: Path) -> Path:
    """A space trained for a moment: how good it is does not matter here."""
    train(Recipe.load("trimodal", [f"data.manifest={pairs}", "training.epochs=1"]), folder / "run", show=False)
    return folder / "run"
