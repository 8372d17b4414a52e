"""Space: geometries, deterministic embeddings, and failures of unreadable sources."""

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import sources_of
from triptych.errors import InputError, MediaError, UsageError
from triptych.interfaces import Source, Waveform
from triptych.pooling import apply_geometry
from triptych.similarities.matchmap import Matchmap


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
    with pytest.raises(UsageError, match=r"no encoder for .smell.; it has image, audio, text"):
        space.encoder("smell")


def test_encode_embeds_mixed_inputs_in_order(space, synthetic_manifest):
    """Data in memory has the embedding of the file with the same content."""
    row = manifest.read(synthetic_manifest).rows[0]
    text = row.texts[0]
    assert row.audio
    assert row.image
    samples, rate = soundfile.read(row.audio, dtype="float32")
    with Image.open(row.image) as file:
        image = file.copy()
    embeddings = space.encode([text, row.audio, image, (samples, rate), row.image, {"text": text}, np.asarray(image)])
    sources = [Source("text", text), Source("audio", row.audio), Source("image", row.image)]
    expected = torch.cat([space.embed_one(source).embedding for source in sources]).numpy()
    assert embeddings.shape == (7, 32)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected[[0, 1, 2, 1, 2, 0, 2]], atol=1e-6)
    one = space.encode(text, convert_to_tensor=True)
    assert torch.allclose(one, torch.from_numpy(expected[0]), atol=1e-6)
    scores = space.similarity(embeddings, embeddings[:2])
    assert scores.shape == (7, 2)
    np.testing.assert_allclose(scores.numpy(), embeddings @ embeddings[:2].T, atol=1e-6)


def test_audio_in_memory_is_resampled_and_cut_like_a_file(space, tmp_path):
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 50_000).astype(np.float32)
    soundfile.write(tmp_path / "noise.wav", samples, 22_050, subtype="FLOAT")
    for start, end in ((None, None), (0.5, 1.5), (1.25, None)):
        in_memory = Source("audio", Waveform(samples, 22_050), start, end)
        in_file = Source("audio", tmp_path / "noise.wav", start, end)
        assert torch.equal(space.encoder("audio").prepare(in_memory), space.encoder("audio").prepare(in_file))
    with pytest.raises(MediaError, match="no audio between 9 s"):
        space.embed_one(Source("audio", Waveform(samples, 22_050), 9.0, 10.0))


def test_encode_handles_empty_lists_and_bad_inputs(space, tmp_path):
    assert space.encode([]).shape == (0, 32)
    damaged = tmp_path / "damaged.wav"
    damaged.write_bytes(b"RIFF")
    with pytest.raises(MediaError, match=r"^input 1: .*damaged\.wav"):
        space.encode(["a bell", damaged, "a drum"])
    with pytest.raises(InputError, match=r"^input 1: int is not an input"):
        space.encode(["a bell", 3])
    with pytest.raises(InputError, match="needs its sampling rate"):
        space.encode(np.zeros(8000, np.float32))
    with pytest.raises(InputError, match="embeddings are"):
        space.similarity(np.zeros((2, 32), np.int64), np.zeros((2, 32), np.float32))
    with pytest.raises(InputError, match="compares parts"):
        Matchmap()(torch.zeros(2, 4), torch.zeros(2, 4))


def test_supported_modalities(space):
    assert [m for m in ("text", "image", "audio", "video") if space.supports(m)] == ["text", "image", "audio"]
