"""The space: geometries, determinism of vectors, and failures that are listed and not lost."""

import pytest
import torch

from triptych.checkpoint import load
from triptych.contracts import Source
from triptych.data import manifest
from triptych.data.loader import sources_of
from triptych.errors import MediaError, UsageError
from triptych.space import onto


@pytest.fixture(scope="module")
def space(run):
    return load(run)


def sources(world, modality, count=12):
    rows = manifest.read(world).rows[:count]
    return [source for row in rows for source in sources_of(row, modality)]


def test_geometries():
    z = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert torch.allclose(onto("sphere", z), torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    assert torch.allclose(onto("ball", z), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    assert torch.equal(onto("free", z), z)


@pytest.mark.parametrize("modality", ["audio", "image", "text"])
def test_the_same_source_gives_the_same_vector(space, world, modality):
    """Whatever the batch, the order and the number of workers."""
    mine = sources(world, modality)
    reference = space.embed(mine, modality).features.embedding
    assert torch.allclose(reference.norm(dim=1), torch.ones(len(mine)), atol=1e-6)
    for batch, workers in ((1, 1), (5, 2), (64, 4)):
        found = space.embed(mine, modality, batch=batch, workers=workers).features.embedding
        assert torch.allclose(found, reference, atol=1e-6)
    backwards = space.embed(mine[::-1], modality).features.embedding.flip(0)
    assert torch.allclose(backwards, reference, atol=1e-6)


def test_the_embedding_is_the_mean_of_the_real_parts(space, world):
    features = space.embed(sources(world, "text"), "text").features
    for embedding, parts, mask in zip(features.embedding, features.parts, features.mask, strict=True):
        assert torch.allclose(onto("sphere", parts[mask].mean(dim=0)), embedding, atol=1e-6)


def test_unreadable_sources_are_listed_and_the_rest_goes_on(space, world, tmp_path):
    (tmp_path / "broken.png").write_text("no")
    good = sources(world, "image", 3)
    bad = Source("image", tmp_path / "broken.png")
    embedded = space.embed([good[0], bad, good[1], good[2]], "image")
    assert embedded.read == [0, 2, 3]
    assert list(embedded.failures) == [bad]
    assert torch.allclose(embedded.features.embedding, space.embed(good, "image").features.embedding, atol=1e-6)
    with pytest.raises(MediaError, match=r"broken\.png"):
        space.embed_one(bad)


def test_nothing_readable_is_no_crash(space, tmp_path):
    embedded = space.embed([Source("image", tmp_path / "missing.png")], "image")
    assert embedded.read == []
    assert len(embedded.features.embedding) == 0


def test_a_modality_it_does_not_know_is_named(space):
    with pytest.raises(UsageError, match="known: audio, image, text"):
        space.encoder("smell")
