"""The cache of features: entries, fingerprints, folders and damaged databases."""

import pytest
import torch

from tests.data.cached_images import make_encoder, make_images
from triptych.data.cache import Cache, FeatureStore, fingerprint_encoder, resolve_cache, to_float16
from triptych.data.features import compute_or_load
from triptych.errors import PluginError, UsageError
from triptych.interfaces import Encoder, Source


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


def make_class(module, stores_argument=True):
    """Return an encoder class without weights, of a module of another package."""

    class Histogram(Encoder):
        modality, part_name, feature_dim = "image", "region", 8

        def __init__(self, bins: int = 8) -> None:
            super().__init__()
            if stores_argument:
                self.bins = bins

        def prepare(self, source):
            raise NotImplementedError

        def forward(self, inputs, mask):
            raise NotImplementedError

    Histogram.__module__ = module
    return Histogram


def test_encoders_of_two_packages_with_the_same_class_name_are_other_entries():
    first, second = make_class("first.encoders"), make_class("second.encoders")
    assert fingerprint_encoder(first()) == fingerprint_encoder(first())
    assert len({fingerprint_encoder(encoder) for encoder in (first(), second(), first(bins=9))}) == 3


def test_an_encoder_without_its_settings_as_attributes_is_an_error():
    with pytest.raises(
        PluginError, match=r"Histogram: these arguments .* are not stored as attributes: bins; the cache"
    ):
        fingerprint_encoder(make_class("first", stores_argument=False)())


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


def test_a_data_file_that_another_process_extends_is_read_to_its_end(tmp_path):
    reader, writer = (FeatureStore(tmp_path, 3, "tests") for _ in range(2))
    for key in (b"first", b"second"):  # the reader has mapped the file when the writer adds the second record
        parts = torch.rand(2, 3)
        writer.add([(key, parts)])
        (record,) = reader.find([key]).values()
        pooled = reader.read_pooled(record)
        assert pooled is not None
        assert pooled[0].tolist() == parts.mean(dim=0).tolist()
        assert reader.read_parts(record).tolist() == to_float16(parts).tolist()
