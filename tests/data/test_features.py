"""Features of frozen encoders: computed once for each content, also with several or killed processes."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.data.cached_images import count_encoded, encode_parts, make_encoder, make_images
from triptych.data.cache import Cache
from triptych.data.features import compute_or_load
from triptych.encoders import ENCODERS
from triptych.interfaces import Source


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
        shutil.copy(source.path, copy.path)
    cached = compute_or_load(encoder, [*sources, *copies, copies[0]], Cache(tmp_path / "cache"))
    assert sum(batch_sizes) == 6
    assert len(cached.index_of) == 12
    pooled = cached.load_batch([cached.index_of[sources[2]], cached.index_of[copies[2]]], with_parts=False)[0]
    assert torch.equal(pooled[0], pooled[1])
    make_images(tmp_path / "b", 1, seed=9)
    shutil.move(tmp_path / "b" / "0000.png", sources[0].path)  # new content at an old path
    changed = compute_or_load(encoder, sources, cache)
    assert sum(batch_sizes) == 7
    assert not torch.equal(changed.pooled[changed.index_of[sources[0]]], cached.pooled[cached.index_of[copies[0]]])


def test_unreadable_files_are_reported_and_retried(tmp_path):
    encoder, cache, sources = make_encoder(), Cache(tmp_path / "cache"), make_images(tmp_path, 3)
    broken = sources[1].path
    whole = broken.read_bytes()
    broken.write_bytes(b"not an image")
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
from tests.data.cached_images import Source, make_encoder
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
    assert 120 <= log.stat().st_size <= 120 + 3 * 4 * 4, "more than the blocks in progress was computed again"
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
    file.write_bytes(whole[: len(whole) // 2])  # truncated, as by a power failure
    again = compute_or_load(encoder, sources, Cache(tmp_path / "cache"))
    assert 4 < sum(batch_sizes) <= 8
    assert torch.allclose(again.pooled, first, atol=1e-6)
    for file in (tmp_path / "cache").glob("*/*.features"):
        file.write_bytes(b"\x07" * file.stat().st_size)
    assert torch.allclose(compute_or_load(encoder, sources, Cache(tmp_path / "cache")).pooled, first, atol=1e-6)


def test_each_process_computes_its_shard_before_the_barrier(tmp_path):
    sources, cache = make_images(tmp_path / "files", 10), Cache(tmp_path / "cache")
    encoder, other_encoder = make_encoder(), make_encoder()
    batch_sizes, other_batch_sizes = count_encoded(encoder), count_encoded(other_encoder)

    def barrier():  # the other process has computed its shard when this returns
        assert sum(batch_sizes) == 5
        compute_or_load(other_encoder, sources[1::2], cache)

    cached = compute_or_load(encoder, sources, cache, shard=(0, 2), barrier=barrier)
    assert (sum(batch_sizes), sum(other_batch_sizes)) == (5, 5)
    assert list(cached.index_of) == sources


def test_a_title_shows_a_progress_bar_of_its_own(tmp_path, capsys):
    sources = make_images(tmp_path / "files", 3)
    compute_or_load(make_encoder(), [*sources, sources[0]], Cache(tmp_path / "cache"), progress="features of image")
    assert capsys.readouterr().err.startswith("features of image: 3/3 in ")
    compute_or_load(make_encoder(), sources, Cache(tmp_path / "cache"))
    assert capsys.readouterr().err == ""
