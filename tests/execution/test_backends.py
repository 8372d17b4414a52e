"""Backends of encoders, their caches and the collections made with them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.similarities.test_similarities import random_features
from triptych import checkpoint
from triptych.data.cache import Cache
from triptych.devices import Execution
from triptych.encoders import ENCODERS
from triptych.encoders.soundnet import SoundNet
from triptych.errors import CollectionError, UsageError
from triptych.execution.backends import (
    ONNX_ENCODERS,
    HalfPrecision,
    OnnxRuntime,
    _make_example,
    apply_execution,
    describe_backends,
    make_onnx_backend,
)
from triptych.interfaces import Encoder, Source
from triptych.search.collection import Collection


def make_soundnet():
    """Return SoundNet with random weights, so that no published file is needed."""
    with torch.device("meta"):
        encoder = SoundNet()
    encoder.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for weights in encoder.parameters():
        weights.data.normal_(0, 0.05, generator=generator)
    return encoder.eval()


class _TokenSums(Encoder):
    """An encoder of texts whose graph is exported fast."""

    modality = "text"
    part_name = "token"
    feature_dim = 4
    frozen = True

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(128, 4)

    def prepare(self, source):
        return torch.tensor([ord(character) % 128 for character in str(source.content)])

    def forward(self, inputs, mask):
        return self.table(inputs) * mask.unsqueeze(2), mask


def test_half_precision_is_close_and_returns_float32():
    encoder = ENCODERS["image_cnn"](feature_dim=32).eval()
    inputs, mask = _make_example(encoder)
    with torch.no_grad():
        expected, _ = encoder(inputs, mask)
        encoder.backend = HalfPrecision("bfloat16")
        parts, parts_mask = encoder(inputs, mask)
    assert parts.dtype == torch.float32
    assert parts_mask.all()
    assert 0 < (parts - expected).norm() < 0.05 * expected.norm()


def test_the_backend_is_used_only_without_gradients():
    encoder = ENCODERS["image_cnn"](feature_dim=32).eval()
    inputs, mask = _make_example(encoder)
    expected, _ = encoder(inputs, mask)
    encoder.backend = HalfPrecision("bfloat16")
    assert torch.equal(encoder(inputs, mask)[0], expected)
    with torch.no_grad():
        assert not torch.equal(encoder(inputs, mask)[0], expected)


@pytest.mark.slow
def test_onnx_runtime_gives_the_same_parts_and_exports_once(tmp_path):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    encoder = _TokenSums().eval()
    backend = make_onnx_backend(encoder, tmp_path)
    (graph,) = tmp_path.glob("*.onnx")
    modified = graph.stat().st_mtime_ns
    backend = make_onnx_backend(encoder, tmp_path)
    assert graph.stat().st_mtime_ns == modified
    inputs, mask = _make_example(encoder)
    inputs, mask = torch.cat([inputs, inputs[:1]]), torch.cat([mask, mask[:1]])  # another batch size
    with torch.inference_mode():
        expected, expected_mask = encoder.forward(inputs, mask)
        parts, parts_mask = backend(encoder, inputs, mask)
    assert torch.equal(parts_mask, expected_mask)
    assert torch.allclose(parts[parts_mask], expected[expected_mask], atol=1e-5)
    other = make_onnx_backend(_TokenSums().eval(), tmp_path)  # other weights: another file
    assert other is not backend
    assert len(list(tmp_path.glob("*.onnx"))) == 2
    graph.write_bytes(graph.read_bytes()[:-1000])
    with pytest.raises(UsageError, match="delete the file and try again"):
        make_onnx_backend(encoder, tmp_path)


def test_each_backend_has_its_own_feature_cache(tmp_path):
    encoder, cache = make_soundnet(), Cache(tmp_path)
    default = cache.feature_store(encoder)
    default.add([(b"key", torch.ones(2, encoder.feature_dim))])
    encoder.backend = OnnxRuntime(lambda inputs, mask: [inputs, mask])
    other = cache.feature_store(encoder)
    assert other.folder.name == f"{default.folder.name}-onnx"
    assert other.find([b"key"]) == {}
    encoder.backend = None
    assert cache.feature_store(encoder).find([b"key"])


def test_the_default_execution_changes_nothing(run_dir):
    space = checkpoint.load(run_dir, device="cpu")
    assert describe_backends(space) == ""
    assert space.device == torch.device("cpu")
    assert space.encode("a dog barks").tobytes() == checkpoint.load(run_dir).encode("a dog barks").tobytes()


def test_a_space_without_a_supported_encoder_cannot_use_onnx(run_dir):
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    with pytest.raises(UsageError, match=rf"faster only for frozen encoders {', '.join(ONNX_ENCODERS)}; this space"):
        checkpoint.load(run_dir, runtime="onnx")


def test_an_unavailable_device_is_reported_before_the_space_is_read():
    with pytest.raises(UsageError, match="device 'cuda:9' is not available"):
        checkpoint.load("missing", device="cuda:9")


def test_items_of_other_backends_are_not_added_to_a_collection(run_dir, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a dog barks")
    space = checkpoint.load(run_dir, device="cpu")
    Collection(tmp_path / "media", space).add(tmp_path / "notes", show_progress=False)
    for modality in space.modalities:
        space.encoder(modality).backend = HalfPrecision("bfloat16")
    media = Collection(tmp_path / "media", space)
    assert media.search("a dog barks", k=1)  # a query may be computed in another way
    with pytest.raises(CollectionError, match=r"other backends \(none\) than this space has \(image-bfloat16-"):
        media.add(tmp_path / "notes", show_progress=False)
    rebuilt = Collection(tmp_path / "media", space, rebuild=True)
    assert rebuilt.add(tmp_path / "notes", show_progress=False).added == 1
    assert rebuilt.store is not None
    assert rebuilt.store.metadata.backends == describe_backends(space)
    assert apply_execution(space, Execution(device="cpu")).encoder("text").backend is None
    with pytest.raises(CollectionError, match=r"than this space has \(none\); give the same --precision"):
        Collection(tmp_path / "media", space).add(tmp_path / "notes", show_progress=False)


def test_scores_are_those_of_the_similarity(run_dir):
    space = checkpoint.load(run_dir)
    dim = space.recipe.space.embed_dim
    a, b = (replace(random_features(3, dim, seed=i), modality=m) for i, m in enumerate(("image", "text")))
    assert torch.equal(space.scores(b, a), space.similarity(a, b).T)
    assert space.embed([Source("text", "rain")], "text").features.embedding.device.type == "cpu"
