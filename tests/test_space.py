"""Space: geometries, deterministic embeddings, and failures of unreadable sources."""

import pytest
import torch

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import sources_of
from triptych.errors import MediaError, UsageError
from triptych.interfaces import Source
from triptych.space import apply_geometry


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


def read_sources(world, modality, count=12):
    rows = manifest.read(world).rows[:count]
    return [source for row in rows for source in sources_of(row, modality)]


def test_geometries():
    z = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert torch.allclose(apply_geometry("sphere", z), torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    assert torch.allclose(apply_geometry("ball", z), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    assert torch.equal(apply_geometry("free", z), z)


@pytest.mark.parametrize("modality", ["audio", "image", "text"])
def test_embeddings_do_not_depend_on_batch_order_or_workers(space, synthetic_manifest, modality):
    """Whatever the batch, the order and the number of workers."""
    sources = read_sources(synthetic_manifest, modality)
    reference = space.embed(sources, modality).features.embedding
    assert torch.allclose(reference.norm(dim=1), torch.ones(len(sources)), atol=1e-6)
    for batch_size, workers in ((1, 1), (5, 2), (64, 4)):
        embedding = space.embed(sources, modality, batch_size=batch_size, workers=workers).features.embedding
        assert torch.allclose(embedding, reference, atol=1e-6)
    reversed_order = space.embed(sources[::-1], modality).features.embedding.flip(0)
    assert torch.allclose(reversed_order, reference, atol=1e-6)


def test_the_embedding_is_the_mean_of_the_real_parts(space, synthetic_manifest):
    features = space.embed(read_sources(synthetic_manifest, "text"), "text").features
    for embedding, parts, mask in zip(features.embedding, features.parts, features.mask, strict=True):
        assert torch.allclose(apply_geometry("sphere", parts[mask].mean(dim=0)), embedding, atol=1e-6)


def test_unreadable_sources_are_listed_and_the_rest_is_embedded(space, synthetic_manifest, tmp_path):
    (tmp_path / "broken.png").write_text("no")
    good = read_sources(synthetic_manifest, "image", 3)
    bad = Source("image", tmp_path / "broken.png")
    result = space.embed([good[0], bad, good[1], good[2]], "image")
    assert result.indices == [0, 2, 3]
    assert list(result.failures) == [bad]
    assert torch.allclose(result.features.embedding, space.embed(good, "image").features.embedding, atol=1e-6)
    with pytest.raises(MediaError, match=r"broken\.png"):
        space.embed_one(bad)


def test_embedding_only_unreadable_sources_gives_empty_features(space, tmp_path):
    result = space.embed([Source("image", tmp_path / "missing.png")], "image")
    assert result.indices == []
    assert len(result.features.embedding) == 0


def test_an_unknown_modality_raises_a_usage_error(space):
    with pytest.raises(UsageError, match="known: audio, image, text"):
        space.encoder("smell")
