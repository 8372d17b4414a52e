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

from triptych.contracts import Source
from triptych.data.cache import Cache, cache_of, fingerprint, halved
from triptych.data.features import remember
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import UsageError


def encoder(seed=0, **settings):
    torch.manual_seed(seed)
    made = ENCODERS["image_cnn"](**{"width": 32, "size": 32, **settings}).eval()
    made.frozen = True
    return made


def counting(made):
    """Count the sources that go through an encoder."""
    seen, forward = [], made.forward
    made.forward = lambda inputs, mask: (seen.append(len(inputs)), forward(inputs, mask))[1]
    return seen


def pictures(folder: Path, count: int, seed: int = 0) -> list[Source]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (24, 30, 3), dtype=np.uint8)).save(folder / f"{i:04}.png")
    return [Source("image", folder / f"{i:04}.png") for i in range(count)]


@torch.inference_mode()
def parts_of(made, source):
    parts, mask = made(*collate([made.prepare(source)]))
    return parts[0][mask[0]]


def test_what_comes_out_is_what_the_encoder_makes(tmp_path):
    made, sources = encoder(), pictures(tmp_path, 5)
    known = remember(made, sources, Cache(tmp_path / "cache"))
    places = [known.place[source] for source in sources]
    pooled, pooled_mask = known.inputs(places, parts=False)
    parts, mask = known.inputs(places, parts=True)
    assert pooled_mask.all()
    for i, source in enumerate(sources):
        expected = parts_of(made, source)
        assert torch.allclose(pooled[i, 0], expected.mean(0), atol=1e-6)
        assert torch.allclose(pooled[i, 1], expected.amax(0), atol=1e-6)
        assert torch.allclose(parts[i][mask[i]].float(), expected, rtol=1e-3, atol=1e-3)


def test_parts_of_different_lengths_are_padded_and_masked(tmp_path):
    torch.manual_seed(0)
    made = ENCODERS["text_transformer"](width=32, heads=2).eval()
    sources = [Source("text", text) for text in ("a bell", "two red bells ring low by the river", "frog")]
    made.learn(sources)
    known = remember(made, sources, Cache(tmp_path))
    parts, mask = known.inputs([known.place[s] for s in sources], parts=True)
    lengths = [len(made.prepare(source)) for source in sources]
    assert mask.sum(1).tolist() == lengths
    assert len(set(lengths)) > 1
    assert not parts[~mask].any()


def test_a_content_is_computed_once_whatever_its_file_is_called(tmp_path):
    made, sources = encoder(), pictures(tmp_path / "a", 6)
    seen, cache = counting(made), Cache(tmp_path / "cache")
    remember(made, sources, cache)
    assert sum(seen) == 6
    copies = [Source("image", tmp_path / f"copy{i}.png") for i in range(6)]
    for source, copy in zip(sources, copies, strict=True):
        shutil.copy(source.content, copy.content)
    known = remember(made, [*sources, *copies, copies[0]], Cache(tmp_path / "cache"))
    assert sum(seen) == 6
    assert len(known.place) == 12
    pooled = known.inputs([known.place[sources[2]], known.place[copies[2]]], parts=False)[0]
    assert torch.equal(pooled[0], pooled[1])
    pictures(tmp_path / "b", 1, seed=9)
    shutil.move(tmp_path / "b" / "0000.png", sources[0].content)  # another content under an old name
    changed = remember(made, sources, cache)
    assert sum(seen) == 7
    assert not torch.equal(changed.pooled[changed.place[sources[0]]], known.pooled[known.place[copies[0]]])


def test_another_weight_setting_or_moment_is_another_entry(tmp_path):
    assert fingerprint(encoder()) == fingerprint(encoder())
    others = [encoder(seed=1), encoder(size=40), encoder(width=64)]
    assert len({fingerprint(made) for made in (encoder(), *others)}) == 4
    moved = encoder()
    with torch.no_grad():
        next(moved.parameters()).view(-1)[0] += 1e-4
    assert fingerprint(moved) != fingerprint(encoder())
    cache, (source,) = Cache(tmp_path / "cache"), pictures(tmp_path, 1)
    keys = cache.keys([source, Source("image", source.content, 0.0, 1.0), Source("text", "a"), Source("text", "b")])
    assert len(set(keys)) == 4


def test_unreadable_files_are_named_and_tried_again(tmp_path):
    made, cache, sources = encoder(), Cache(tmp_path / "cache"), pictures(tmp_path, 3)
    broken = Path(sources[1].content)
    whole = broken.read_bytes()
    broken.write_bytes(b"no picture at all")
    missing = Source("image", tmp_path / "gone.png")
    known = remember(made, [*sources, missing], cache)
    assert set(known.failures) == {sources[1], missing}
    assert "0001.png" in known.failures[sources[1]]
    assert set(known.place) == {sources[0], sources[2]}
    broken.write_bytes(whole)
    assert not remember(made, sources, cache).failures


SCRIPT = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.data.test_cache import encoder, Source
from triptych.data import features
from triptych.data.cache import Cache
features.BATCH, features.SORTED = 4, 1
made = encoder()
forward = made.forward
def slow(inputs, mask):
    time.sleep(0.02)
    with open(sys.argv[3], "a") as log:
        log.write("x" * len(inputs))
    return forward(inputs, mask)
made.forward = slow
sources = [Source("image", p) for p in sorted(Path(sys.argv[1]).iterdir())]
features.remember(made, sources, Cache(sys.argv[2]))
"""


def started(folder, cache, log):
    command = [sys.executable, "-c", SCRIPT, str(folder), str(cache), str(log)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost_and_only_the_blocks_in_hand_are_done_again(tmp_path):
    sources, log = pictures(tmp_path / "files", 120), tmp_path / "log"
    log.touch()
    for wanted in (10, 45, 80):
        process = started(tmp_path / "files", tmp_path / "cache", log)
        while log.stat().st_size < wanted and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert started(tmp_path / "files", tmp_path / "cache", log).wait() == 0
    assert 120 <= log.stat().st_size <= 120 + 3 * 4 * 4, "more than the blocks in hand was done again"
    made = encoder()
    seen = counting(made)
    known = remember(made, sources, Cache(tmp_path / "cache"))
    assert not seen
    for source in sources[::20]:
        assert torch.allclose(known.pooled[known.place[source]][0], parts_of(encoder(), source).mean(0), atol=1e-5)


@pytest.mark.slow
def test_two_processes_at_once_are_safe(tmp_path):
    sources = pictures(tmp_path / "files", 60)
    both = [started(tmp_path / "files", tmp_path / "cache", tmp_path / f"log{i}") for i in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    made = encoder()
    seen = counting(made)
    known = remember(made, sources, Cache(tmp_path / "cache"))
    assert not seen
    assert len(known.place) == 60


def test_damaged_entries_are_computed_again(tmp_path):
    made, sources = encoder(), pictures(tmp_path / "files", 4)
    seen = counting(made)
    first = remember(made, sources, Cache(tmp_path / "cache")).pooled
    (file,) = (tmp_path / "cache").glob("*/*.features")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # cut short: a power failure
    again = remember(made, sources, Cache(tmp_path / "cache"))
    assert 4 < sum(seen) <= 8
    assert torch.allclose(again.pooled, first, atol=1e-6)
    for file in (tmp_path / "cache").glob("*/*.features"):
        file.write_bytes(b"\x07" * file.stat().st_size)
    assert torch.allclose(remember(made, sources, Cache(tmp_path / "cache")).pooled, first, atol=1e-6)


def test_sizes_are_reported_and_clearing_removes_everything(tmp_path):
    cache = Cache(tmp_path / "cache")
    assert cache.sizes() == []
    remember(encoder(), pictures(tmp_path / "files", 3), cache)
    ((about, items, size),) = cache.sizes()
    assert "ImageCNN" in about
    assert items == 3
    assert size >= 3 * (32 * 8 + 16 * 32 * 2)
    (tmp_path / "cache" / "mine.txt").write_text("not ours")
    cache.clear()
    assert cache.sizes() == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mine.txt"]


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "named"))
    assert Cache.default().folder == tmp_path / "named"
    monkeypatch.delenv("TRIPTYCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert Cache.default().folder == tmp_path / "x" / "triptych"
    assert cache_of("off") is None
    named = cache_of(str(tmp_path))
    assert named
    assert named.folder == tmp_path
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: is a file; give a folder"):
        Cache(tmp_path / "file")


def test_numbers_too_large_for_half_precision_are_cut_not_lost():
    assert torch.equal(halved(torch.tensor([1e9, -1e9, 1.5])), torch.tensor([65504.0, -65504.0, 1.5]).half())


def test_an_index_that_is_none_is_called_damaged(tmp_path):
    cache = Cache(tmp_path / "cache")
    remember(encoder(), pictures(tmp_path / "files", 1), cache)
    for file in cache.folder.glob("*.sqlite"):
        file.write_bytes(b"no database " * 1000)
    with pytest.raises(UsageError, match=r"files\.sqlite: the cache is damaged .*; remove its folder"):
        remember(encoder(), pictures(tmp_path / "files", 1), cache)
