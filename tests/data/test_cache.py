"""The cache: computed once for each content, whole after any kill, right for several processes at once."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.data.cache import Cache, fingerprint_encoder, resolve_cache, to_float16
from triptych.data.features import compute_or_load
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.interfaces import Source


def make_encoder(seed=0, **settings):
    torch.manual_seed(seed)
    encoder = ENCODERS["image_cnn"](**{"feature_dim": 32, "image_size": 32, **settings}).eval()
    encoder.frozen = True
    return encoder


def count_encoded(encoder):
    """Count the sources that go through an encoder."""
    batch_sizes, forward = [], encoder.forward
    encoder.forward = lambda inputs, mask: (batch_sizes.append(len(inputs)), forward(inputs, mask))[1]
    return batch_sizes


def make_images(folder: Path, count: int, seed: int = 0) -> list[Source]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (24, 30, 3), dtype=np.uint8)).save(folder / f"{i:04}.png")
    return [Source("image", folder / f"{i:04}.png") for i in range(count)]


@torch.inference_mode()
def encode_parts(encoder, source):
    parts, mask = encoder(*collate([encoder.prepare(source)]))
    return parts[0][mask[0]]


def test_cached_features_equal_the_encoders_output(tmp_path):
    encoder, sources = make_encoder(), make_images(tmp_path, 5)
    cached = compute_or_load(encoder, sources, Cache(tmp_path / "cache"))
    indices = [cached.index_of[source] for source in sources]
    pooled, pooled_mask = cached.load_batch(indices, with_parts=False)
    parts, mask = cached.load_batch(indices, with_parts=True)
    assert pooled_mask.all()
    for i, source in enumerate(sources):
        expected = encode_parts(encoder, source)
        assert torch.allclose(pooled[i, 0], expected.mean(0), atol=1e-6)
        assert torch.allclose(pooled[i, 1], expected.amax(0), atol=1e-6)
        assert torch.allclose(parts[i][mask[i]].float(), expected, rtol=1e-3, atol=1e-3)


def test_parts_of_different_lengths_are_padded_and_masked(tmp_path):
    torch.manual_seed(0)
    encoder = ENCODERS["text_transformer"](feature_dim=32, num_heads=2).eval()
    sources = [Source("text", text) for text in ("a bell", "two red bells ring low by the river", "frog")]
    encoder.fit_vocabulary(sources)
    cached = compute_or_load(encoder, sources, Cache(tmp_path))
    parts, mask = cached.load_batch([cached.index_of[s] for s in sources], with_parts=True)
    lengths = [len(encoder.prepare(source)) for source in sources]
    assert mask.sum(1).tolist() == lengths
    assert len(set(lengths)) > 1
    assert not parts[~mask].any()


def test_a_content_is_computed_once_whatever_its_file_is_called(tmp_path):
    encoder, sources = make_encoder(), make_images(tmp_path / "a", 6)
    batch_sizes, cache = count_encoded(encoder), Cache(tmp_path / "cache")
    compute_or_load(encoder, sources, cache)
    assert sum(batch_sizes) == 6
    copies = [Source("image", tmp_path / f"copy{i}.png") for i in range(6)]
    for source, copy in zip(sources, copies, strict=True):
        shutil.copy(source.content, copy.content)
    cached = compute_or_load(encoder, [*sources, *copies, copies[0]], Cache(tmp_path / "cache"))
    assert sum(batch_sizes) == 6
    assert len(cached.index_of) == 12
    pooled = cached.load_batch([cached.index_of[sources[2]], cached.index_of[copies[2]]], with_parts=False)[0]
    assert torch.equal(pooled[0], pooled[1])
    make_images(tmp_path / "b", 1, seed=9)
    shutil.move(tmp_path / "b" / "0000.png", sources[0].content)  # another content under an old name
    changed = compute_or_load(encoder, sources, cache)
    assert sum(batch_sizes) == 7
    assert not torch.equal(changed.pooled[changed.index_of[sources[0]]], cached.pooled[cached.index_of[copies[0]]])


def test_other_weights_settings_or_segments_are_other_entries(tmp_path):
    assert fingerprint_encoder(make_encoder()) == fingerprint_encoder(make_encoder())
    other_encoders = [make_encoder(seed=1), make_encoder(image_size=40), make_encoder(feature_dim=64)]
    assert len({fingerprint_encoder(made) for made in (make_encoder(), *other_encoders)}) == 4
    changed = make_encoder()
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1e-4
    assert fingerprint_encoder(changed) != fingerprint_encoder(make_encoder())
    cache, (source,) = Cache(tmp_path / "cache"), make_images(tmp_path, 1)
    keys = cache.content_keys(
        [source, Source("image", source.content, 0.0, 1.0), Source("text", "a"), Source("text", "b")]
    )
    assert len(set(keys)) == 4


def test_unreadable_files_are_reported_and_retried(tmp_path):
    encoder, cache, sources = make_encoder(), Cache(tmp_path / "cache"), make_images(tmp_path, 3)
    broken = Path(sources[1].content)
    whole = broken.read_bytes()
    broken.write_bytes(b"no picture at all")
    missing = Source("image", tmp_path / "gone.png")
    cached = compute_or_load(encoder, [*sources, missing], cache)
    assert set(cached.failures) == {sources[1], missing}
    assert "0001.png" in cached.failures[sources[1]]
    assert set(cached.index_of) == {sources[0], sources[2]}
    broken.write_bytes(whole)
    assert not compute_or_load(encoder, sources, cache).failures


SCRIPT = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.data.test_cache import Source, make_encoder
from triptych.data import features
from triptych.data.cache import Cache
features.BATCH_SIZE, features.BATCHES_PER_BLOCK = 4, 1
encoder = make_encoder()
forward = encoder.forward
def slow(inputs, mask):
    time.sleep(0.02)
    with open(sys.argv[3], "a") as log:
        log.write("x" * len(inputs))
    return forward(inputs, mask)
encoder.forward = slow
sources = [Source("image", p) for p in sorted(Path(sys.argv[1]).iterdir())]
features.compute_or_load(encoder, sources, Cache(sys.argv[2]))
"""


def start_process(folder, cache, log):
    command = [sys.executable, "-c", SCRIPT, str(folder), str(cache), str(log)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_a_killed_process_loses_only_the_blocks_in_progress(tmp_path):
    sources, log = make_images(tmp_path / "files", 120), tmp_path / "log"
    log.touch()
    for log_size in (10, 45, 80):
        process = start_process(tmp_path / "files", tmp_path / "cache", log)
        while log.stat().st_size < log_size and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start_process(tmp_path / "files", tmp_path / "cache", log).wait() == 0
    assert 120 <= log.stat().st_size <= 120 + 3 * 4 * 4, "more than the blocks in hand was done again"
    encoder = make_encoder()
    batch_sizes = count_encoded(encoder)
    cached = compute_or_load(encoder, sources, Cache(tmp_path / "cache"))
    assert not batch_sizes
    for source in sources[::20]:
        assert torch.allclose(
            cached.pooled[cached.index_of[source]][0], encode_parts(make_encoder(), source).mean(0), atol=1e-5
        )


@pytest.mark.slow
def test_two_processes_at_once_are_safe(tmp_path):
    sources = make_images(tmp_path / "files", 60)
    both = [start_process(tmp_path / "files", tmp_path / "cache", tmp_path / f"log{i}") for i in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    encoder = make_encoder()
    batch_sizes = count_encoded(encoder)
    cached = compute_or_load(encoder, sources, Cache(tmp_path / "cache"))
    assert not batch_sizes
    assert len(cached.index_of) == 60


def test_corrupt_entries_are_recomputed(tmp_path):
    encoder, sources = make_encoder(), make_images(tmp_path / "files", 4)
    batch_sizes = count_encoded(encoder)
    first = compute_or_load(encoder, sources, Cache(tmp_path / "cache")).pooled
    (file,) = (tmp_path / "cache").glob("*/*.features")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # cut short: a power failure
    again = compute_or_load(encoder, sources, Cache(tmp_path / "cache"))
    assert 4 < sum(batch_sizes) <= 8
    assert torch.allclose(again.pooled, first, atol=1e-6)
    for file in (tmp_path / "cache").glob("*/*.features"):
        file.write_bytes(b"\x07" * file.stat().st_size)
    assert torch.allclose(compute_or_load(encoder, sources, Cache(tmp_path / "cache")).pooled, first, atol=1e-6)


def test_list_stores_and_clear(tmp_path):
    cache = Cache(tmp_path / "cache")
    assert cache.list_stores() == []
    compute_or_load(make_encoder(), make_images(tmp_path / "files", 3), cache)
    ((description, items, size),) = cache.list_stores()
    assert "ImageCNN" in description
    assert items == 3
    assert size >= 3 * (32 * 8 + 16 * 32 * 2)
    (tmp_path / "cache" / "mine.txt").write_text("not ours")
    cache.clear()
    assert cache.list_stores() == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mine.txt"]


def test_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "named"))
    assert Cache.default().folder == tmp_path / "named"
    monkeypatch.delenv("TRIPTYCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert Cache.default().folder == tmp_path / "x" / "triptych"
    assert resolve_cache("off") is None
    cache = resolve_cache(str(tmp_path))
    assert cache
    assert cache.folder == tmp_path
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: is a file; the cache must be a folder"):
        Cache(tmp_path / "file")


def test_to_float16_clamps_large_values():
    assert torch.equal(to_float16(torch.tensor([1e9, -1e9, 1.5])), torch.tensor([65504.0, -65504.0, 1.5]).half())


def test_an_index_that_is_not_a_database_is_reported_as_corrupt(tmp_path):
    cache = Cache(tmp_path / "cache")
    compute_or_load(make_encoder(), make_images(tmp_path / "files", 1), cache)
    for file in cache.folder.glob("*.sqlite"):
        file.write_bytes(b"no database " * 1000)
    with pytest.raises(UsageError, match=r"files\.sqlite: the cache is damaged .*; delete its folder"):
        compute_or_load(make_encoder(), make_images(tmp_path / "files", 1), cache)
