"""Search: an IVF index against an exact NumPy scan, filters, ingest, kills, and retrieval on synthetic data."""

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
from triptych.app import terminal
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.manifest import Row
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.data.synthetic.annotations import read_annotations
from triptych.evaluation.localisation import localise
from triptych.interfaces import Modality, Source
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.index import search_exact
from triptych.search.item import METADATA_COLUMNS
from triptych.search.lease import acquire_write_access
from triptych.search.query import Filter, Query, StoredItem
from triptych.search.ranking import RELEVANCE_THRESHOLD
from triptych.search.roots import Roots
from triptych.search.scan import items_from_rows
from triptych.search.store import CollectionMetadata, Writer
from triptych.space import Space
from triptych.training.loop import train

DIM, QUERIES, K = 256, 200, 10
CLUSTERS, NOISE = 2000, 0.8
NUM_KILLS = 20
CATEGORIES = ("bee", "bell", "bird", "clock", "drum", "frog", "horn", "whistle")
GALLERY_MODALITIES: tuple[Modality, ...] = ("image", "audio")


def main(cases: Sequence[str] = ("speed", "synthetic", "ingest", "kills")) -> None:
    """Run the named cases: speed, synthetic, ingest, kills."""
    for case in cases:
        {"speed": bench_speed, "synthetic": bench_synthetic, "ingest": bench_ingest, "kills": bench_kills}[case]()


def bench_speed() -> None:
    """Measure 200,000 and 1,000,000 vectors: recall, query time against an exact NumPy scan, filters, opening."""
    for count in (200_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            _bench_speed_at(count, Path(folder))


def _bench_speed_at(count: int, folder: Path) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, DIM)).astype(np.float32)
    keys, queries = (_make_clustered_keys(rng, centres, number) for number in (count, QUERIES))
    started = time.perf_counter()
    _make_collection(folder / "collection", folder / "space.safetensors", keys)
    build_seconds = time.perf_counter() - started
    open_seconds = _time_calls(lambda _: Collection(folder / "collection"), 5)
    collection = Collection(folder / "collection")
    snapshot = collection._load_snapshot()
    gallery = snapshot.load_gallery("image")
    half_filter = Filter(min_duration=5.0)
    mask = snapshot.make_mask("image", half_filter.to_sql(Roots()))
    started = time.perf_counter()
    collection.search(Query.combine(StoredItem(_make_id(0))), ["image"], item_filter=half_filter)
    cold_seconds = time.perf_counter() - started
    exact = [set(search_exact(query, keys, K)[0].tolist()) for query in queries]
    approximate = [gallery.search(query, K)[0] for query in queries]
    recall = statistics.mean(len(set(a.tolist()) & b) / K for a, b in zip(approximate, exact, strict=True))
    items = [Query.combine(StoredItem(_make_id(i))) for i in range(QUERIES)]
    workloads: dict[str, Callable[[int], object]] = {
        "exact NumPy scan": lambda i: search_exact(queries[i], keys, K),
        "IVF index": lambda i: gallery.search(queries[i], K),
        "IVF index, half filtered out": lambda i: gallery.search(queries[i], K, mask),
        "complete search by an item": lambda i: collection.search(items[i], ["image"], K),
        "complete search, filtered": lambda i: collection.search(items[i], "image", K, item_filter=half_filter),
    }
    times = {name: _time_calls(work, 40) for name, work in workloads.items()}
    scan_seconds = statistics.median(times["exact NumPy scan"])
    print(
        f"{count:,} × {DIM}: written and indexed in {build_seconds:.0f} s; opened in "
        f"{statistics.median(open_seconds):.2f} s; probe "
        f"fraction {gallery.ivf_index.probe_fraction if gallery.ivf_index else 1:g}; recall@{K} {recall:.3f}; "
        f"the first search, with a new filter, {1000 * cold_seconds:.0f} ms",
        flush=True,
    )
    for name, seconds in times.items():
        median, ratio = statistics.median(seconds), statistics.median(seconds) / scan_seconds
        fast, slow = np.quantile(seconds, [0.1, 0.9])
        print(
            f"  {name:26} p50 {1000 * median:7.2f} ms (10–90%: {1000 * fast:.2f}–{1000 * slow:.2f})  "
            f"{ratio:.4f} of the scan time = 1/{1 / ratio:.0f}",
            flush=True,
        )


def _time_calls(work: Callable[[int], object], count: int) -> list[float]:
    for i in range(5):
        work(i)
    durations = []
    for i in range(count):
        started = time.perf_counter()
        work(i % QUERIES)
        durations.append(time.perf_counter() - started)
    return durations


def _make_clustered_keys(rng: np.random.Generator, centres: np.ndarray, count: int) -> np.ndarray:
    keys = centres[rng.integers(0, len(centres), count)]
    keys += NOISE * rng.standard_normal(keys.shape, np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def _make_id(number: int) -> str:
    return f"{number:016x}"


def _make_collection(folder: Path, space_path: Path, keys: np.ndarray) -> None:
    """Make a collection of images with these keys; their files do not exist."""
    space = Space(Recipe.load("trimodal", [f"space.embed_dim={DIM}"]))
    space.encoder("text").fit_vocabulary([Source("text", "a bell and a frog")])
    checkpoint.save(space.eval(), space_path)
    with acquire_write_access(str(folder)) as access:
        note = CollectionMetadata(str(space_path), checkpoint.compute_fingerprint(space_path))
        writer = Writer.create(str(folder), note, DIM, access)
        writer.set_roots(Roots({"images": folder / "images"}))
        _write_items(writer, keys)
    Collection(folder)._build_indexes()


def _write_items(writer: Writer, keys: np.ndarray) -> None:
    block, schema = 100_000, writer.store.schema
    for first in range(0, len(keys), block):
        block_keys = keys[first : first + block]
        row_ids = range(first, first + len(block_keys))
        string_columns = {
            "id": [_make_id(i) for i in row_ids],
            "modality": ["image"] * len(block_keys),
            "file": [f"images/{i % 100:02}/{i}.png" for i in row_ids],
            "content_hash": [_make_id(i) for i in row_ids],
            "metadata_hash": [""] * len(block_keys),
        }
        columns: dict[str, pa.Array] = {name: pa.array(values, pa.string()) for name, values in string_columns.items()}
        columns["row_id"] = pa.array(row_ids, pa.int64())
        columns["origins"] = pa.array([["/images"]] * len(block_keys), pa.list_(pa.string()))
        columns["duration"] = pa.array([float(i % 10) for i in row_ids], pa.float64())
        columns["modified_time"] = pa.array([float(i) for i in row_ids], pa.float64())
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(block_keys.ravel()), DIM)
        for field in schema:
            columns.setdefault(field.name, pa.nulls(len(block_keys), field.type))
        writer.upsert(pa.table({field.name: columns[field.name] for field in schema}))
    writer.optimize()


def bench_synthetic() -> None:
    """Train the space of the demo: retrieval of test scenes by text, and relevance when nothing matches."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest_path = generate(SyntheticConfig(scenes=3000, seed=0), folder / "world")
        train(Recipe.load("trimodal", [f"data.manifest={manifest_path}"]), folder / "run", show_progress=False)
        measure_synthetic(manifest_path, folder / "run", folder)
        space = checkpoint.load(folder / "run")
        terminal.print_localisation(localise(space, manifest_path.parent, show_progress=False))


def measure_synthetic(manifest_path: Path, run: Path, folder: Path) -> None:
    """Print retrieval rates for synthetic data and a space trained on it."""
    rows = manifest.read(manifest_path).split("test").rows
    truths = {truth.id: truth for truth in read_annotations(manifest_path.parent)}
    categories = {row.id: {p.attributes.category for p in truths[row.id].objects} for row in rows}
    collection = Collection(folder / "all", run)
    collection.index(items_from_rows(rows, collection.space), manifest_path, show_progress=False)
    for modality in GALLERY_MODALITIES:
        ids_by_row = [_search_ids(collection, max(row.texts, key=len), modality) for row in rows]
        first_shares_category = [
            bool(categories[row.id] & categories[ids[0]]) for row, ids in zip(rows, ids_by_row, strict=True)
        ]
        top5_has_all = [
            any(categories[row.id] <= categories[name] for name in ids)
            for row, ids in zip(rows, ids_by_row, strict=True)
        ]
        top5_has_scene = [row.id in ids for row, ids in zip(rows, ids_by_row, strict=True)]
        ids_by_category = [_search_ids(collection, f"a {category}", modality) for category in CATEGORIES]
        category_is_retrieved = [
            any(category in categories[name] for name in ids)
            for category, ids in zip(CATEGORIES, ids_by_category, strict=True)
        ]
        percentages = [
            f"{100 * np.mean(outcomes):.1f}%" for outcomes in (top5_has_all, first_shares_category, top5_has_scene)
        ]
        print(
            f"text → {modality}: of {len(rows)} test captions {percentages[0]} have an item with all their objects "
            "in the "
            f"top 5, {percentages[1]} one of them in the first, {percentages[2]} their own scene in the top 5; 'a "
            "OBJECT' "
            f"has it in the top 5 for {sum(category_is_retrieved)} of {len(CATEGORIES)} objects",
            flush=True,
        )
    _measure_absent_queries(collection, rows, categories, folder, manifest_path)


def _search_ids(collection: Collection, text: str, modality: Modality) -> list[str]:
    return [hit.item.columns["id"][0] for hit in collection.search(Source("text", text), [modality], k=5)]


def _measure_absent_queries(
    collection: Collection, rows: Sequence[Row], categories: dict[str, set[str]], folder: Path, manifest_path: Path
) -> None:
    """Search captions of one object in the full collection and in one without that object."""
    is_relevant: dict[tuple[str, bool], list[bool]] = {}
    for category in CATEGORIES:
        reduced = Collection(folder / f"without-{category}", collection.space_path)
        reduced.index(
            items_from_rows([r for r in rows if category not in categories[r.id]], reduced.space),
            manifest_path,
            show_progress=False,
        )
        captions = [max(row.texts, key=len) for row in rows if categories[row.id] == {category}][:20]
        for modality in GALLERY_MODALITIES:
            for is_present, searched in ((True, collection), (False, reduced)):
                for caption in captions:
                    first = searched.search(Source("text", caption), [modality], k=1)[0]
                    is_relevant.setdefault((modality, is_present), []).append(first.relevance >= RELEVANCE_THRESHOLD)
    for modality in GALLERY_MODALITIES:
        present_rate, absent_rate = (np.mean(is_relevant[modality, is_present]) for is_present in (True, False))
        print(
            f"text → {modality}: the first hit is above the relevance threshold for {100 * present_rate:.0f}% of "
            "captions "
            f"whose object is present, and for {100 * absent_rate:.0f}% of captions whose object is absent",
            flush=True,
        )


def bench_ingest() -> None:
    """Measure the fraction of indexing time by stage."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest_path = generate(SyntheticConfig(scenes=1000, seed=1), folder / "world")
        run = _train_briefly(manifest_path, folder)
        for name in ("new collection", "unchanged collection"):
            collection = Collection(folder / "collection", run)
            collection.cache = Cache(folder / "cache")
            started = time.perf_counter()
            report = collection.index(
                items_from_rows(manifest.read(manifest_path).rows, collection.space), manifest_path, show_progress=False
            )
            total_seconds = time.perf_counter() - started
            breakdown = ", ".join(f"{stage} {100 * t / total_seconds:.0f}%" for stage, t in report.seconds.items())
            print(
                f"{name}: {report.added} added, {report.unchanged} unchanged in {total_seconds:.1f} s: {breakdown}",
                flush=True,
            )


def bench_kills() -> None:
    """Kill `triptych index` at random times, resume it, and compare the result with an uninterrupted run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest_path = generate(SyntheticConfig(scenes=2000, seed=2), folder / "world")
        run = _train_briefly(manifest_path, folder)
        started = time.perf_counter()
        _start_indexing(manifest_path.parent, run, folder / "uninterrupted", folder / "cache-uninterrupted").wait()
        build_seconds = time.perf_counter() - started
        expected, is_same = read_contents(folder / "uninterrupted"), list[bool]()
        rng, num_stored = np.random.default_rng(0), list[int]()
        while len(num_stored) < NUM_KILLS:
            is_new, started = not (folder / "killed").exists(), time.perf_counter()
            child = _start_indexing(manifest_path.parent, run, folder / "killed", folder / "cache-killed")
            try:
                # The first seconds only load libraries, so most kills come later.
                child.wait(rng.uniform(0.3, 1.0) * build_seconds)
                build_seconds = time.perf_counter() - started if is_new else build_seconds
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                num_stored.append(
                    len(Collection(folder / "killed")) if (folder / "killed" / "items.lance").exists() else 0
                )
            if (folder / "killed" / "items.lance").exists() and len(Collection(folder / "killed")) == len(expected[0]):
                is_same.append(_is_same(read_contents(folder / "killed"), expected))
                shutil.rmtree(folder / "killed")  # the index is complete: start with an empty collection
                shutil.rmtree(folder / "cache-killed")
        _start_indexing(manifest_path.parent, run, folder / "killed", folder / "cache-killed").wait()
        is_same.append(_is_same(read_contents(folder / "killed"), expected))
        print(
            f"killed {NUM_KILLS} times, with {num_stored} of {len(expected[0])} items stored; completed "
            f"{len(is_same)} times, "
            f"{sum(is_same)} times with the result of an uninterrupted run"
        )


def read_contents(folder: Path) -> tuple[list[list[object]], np.ndarray]:
    """Return the contents of a collection regardless of order: metadata, and vectors (N, S)."""
    collection = Collection(folder)
    rows = collection.store.select_rows([*METADATA_COLUMNS, "vector"]).to_pylist() if collection.store else []
    rows.sort(key=lambda row: row["id"])
    assert len({row["id"] for row in rows}) == len(rows)
    columns = [name for name in METADATA_COLUMNS if name != "row_id"]
    return [[row[name] for name in columns] for row in rows], np.array([row["vector"] for row in rows])


def _is_same(one: tuple[list[list[object]], np.ndarray], other: tuple[list[list[object]], np.ndarray]) -> bool:
    """Return whether two collections are equal. Vectors may differ by rounding, which depends on the batch."""
    return one[0] == other[0] and bool(np.allclose(one[1], other[1], rtol=0, atol=1e-5))


def _start_indexing(source: Path, run: Path, collection: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "triptych",
        "index",
        str(source),
        "--space",
        str(run),
        "--collection",
        str(collection),
    ]
    environment = os.environ | {"TRIPTYCH_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def _train_briefly(manifest_path: Path, folder: Path) -> Path:
    """Train a space for one epoch. The quality of the space does not matter here."""
    train(
        Recipe.load("trimodal", [f"data.manifest={manifest_path}", "training.epochs=1"]),
        folder / "run",
        show_progress=False,
    )
    return folder / "run"
