"""No computation mixes devices: everything that embeds or trains runs on a pretended GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.encoders import tiny_models
from tests.fake_device import CPU, GPU, fake_device
from tests.objectives.test_objectives import EMBED_DIM, OBJECTIVES, SETTINGS, total_loss
from tests.similarities.test_similarities import random_features
from tests.training.cases import CASES, build_case
from triptych.data.features import encode_blocks
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.encoders.yamnet import YAMNet
from triptych.execution.backends import _make_example
from triptych.inputs import to_source
from triptych.interfaces import Features, Pair, Similarity, Source
from triptych.similarities import SIMILARITIES
from triptych.training.step import take_step

METRICS = ({"metric": "diagonal"}, {"metric": "low_rank", "rank": 2}, {"metric": "full"})
SIMILARITY_SETTINGS = [(name, {}) for name in SIMILARITIES if name != "mahalanobis"]
SIMILARITY_SETTINGS += [("mahalanobis", {"embed_dim": EMBED_DIM, **settings}) for settings in ({}, *METRICS)]
SIMILARITY_SETTINGS += [("matchmap", {"reduction": reduction}) for reduction in ("sisa", "sima")]
PRETRAINED = {"hf_image": "vit", "hf_audio": "wav2vec2", "hf_text": "bert"}
JOINT = {"joint_image": "clip", "joint_text": "clip", "joint_audio": "clap"}


def build_encoder(name, folder):
    """Build an encoder: with random weights in place of published ones, so that no file is needed."""
    if model := PRETRAINED.get(name) or JOINT.get(name):
        pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")
        return ENCODERS[name](model=str(getattr(tiny_models, model)(folder)))
    torch.manual_seed(0)
    if not ENCODERS[name].frozen:
        encoder = ENCODERS[name]()
        encoder.fit_vocabulary([Source("text", "a dog barks"), Source("text", "rain on a tin roof")])
        return encoder
    with torch.device("meta"):
        encoder = ENCODERS[name]()
    encoder.to_empty(device="cpu")
    for tensor in encoder.state_dict(keep_vars=True).values():
        nn.init.normal_(tensor.data, std=0.05) if tensor.is_floating_point() else tensor.data.zero_()
    for buffer in encoder.buffers():
        buffer.normal_() if buffer.is_floating_point() else buffer.zero_()
    return encoder


def make_inputs(encoder):
    """Return prepared inputs of two items; without the published files, of random tokens or numbers."""
    if encoder.modality == "text" and encoder.frozen and not hasattr(encoder, "model"):
        return collate([torch.tensor([101, 7, 8, 9, 102]), torch.tensor([101, 7, 102])])
    if isinstance(encoder, YAMNet):
        return collate([torch.randn(2, 96, 64), torch.randn(5, 96, 64)])
    return _make_example(encoder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS.known_names())
def test_encoders_run_on_the_device_of_their_weights(name, tmp_path):
    encoder = build_encoder(name, tmp_path).eval()
    inputs, mask = make_inputs(encoder)
    with torch.no_grad():
        expected, expected_mask = encoder(inputs, mask)
        probabilities = encoder.class_probabilities(expected.mean(dim=1))
    with fake_device() as gpu, torch.no_grad():
        gpu.move(encoder)
        parts, parts_mask = encoder(gpu.make_fake(inputs, GPU), gpu.make_fake(mask, GPU))
        assert (parts.device, parts_mask.device) == (GPU, GPU)
        assert parts.dtype == expected.dtype
        if probabilities is not None:
            moved = encoder.class_probabilities(parts.mean(dim=1))
            assert moved is not None
            assert moved.device == GPU
        actual, actual_mask = gpu.value_of(parts), gpu.value_of(parts_mask)
    assert torch.equal(actual_mask, expected_mask)
    assert torch.allclose(actual[actual_mask], expected[expected_mask], atol=1e-4)


def fake_features(gpu, features, requires_grad=False):
    """Copy features to the pretended GPU."""
    embedding, parts = (gpu.make_fake(x, GPU) for x in (features.embedding, features.parts))
    if requires_grad:
        embedding.requires_grad_()
        parts.requires_grad_()
    return Features(embedding, parts, gpu.make_fake(features.mask, GPU))


def padded_features(seed, rows=6):
    features = random_features(rows, EMBED_DIM, parts=3, seed=seed, dtype=torch.float32)
    mask = features.mask.clone()
    mask[::2, 2] = False
    return replace(features, mask=mask)


@pytest.mark.parametrize(("name", "settings"), SIMILARITY_SETTINGS)
def test_similarities_run_on_the_device_of_the_features(name, settings):
    torch.manual_seed(0)
    similarity, a, b = SIMILARITIES[name](**settings), padded_features(1), padded_features(2)
    outputs = ("forward", "query", "keys", "attribution")
    with torch.no_grad():
        expected = [similarity(a, b), similarity.query(a), similarity.keys(b), similarity.attribution(a, b)]
    with fake_device() as gpu:
        gpu.move(similarity)
        fake_a, fake_b = (fake_features(gpu, features, requires_grad=True) for features in (a, b))
        scores = similarity(fake_a, fake_b)
        scores.sum().backward()
        similarity.after_step()
        actual = [scores, similarity.query(fake_a), similarity.keys(fake_b), similarity.attribution(fake_a, fake_b)]
        for output, tensor, value in zip(outputs, actual, expected, strict=True):
            assert tensor.device == GPU, output
            assert torch.allclose(gpu.value_of(tensor), value, atol=1e-5), output
        grads = [x.grad for x in (fake_a.embedding, fake_a.parts, *similarity.parameters()) if x.grad is not None]
        assert grads
        assert all(grad.device == GPU for grad in grads)


@pytest.mark.parametrize("name", OBJECTIVES.known_names())
def test_objectives_run_on_the_device_of_the_features(name):
    torch.manual_seed(0)
    objective, a, b = OBJECTIVES[name](**SETTINGS.get(name, {})), padded_features(1), padded_features(2)
    group, teacher = torch.tensor([0, 1, 1, 2, 3, 4]), a.embedding[:, :5].softmax(dim=1)
    torch.manual_seed(1)
    expected = total_loss(objective, Pair(a, b, group, SIMILARITIES["cosine"](), teacher)).item()
    with fake_device() as gpu:
        gpu.move(objective)
        fake_a, fake_b = (fake_features(gpu, features, requires_grad=True) for features in (a, b))
        fake_group, fake_teacher = gpu.make_fake(group, GPU), gpu.make_fake(teacher, GPU)
        torch.manual_seed(1)
        loss = total_loss(objective, Pair(fake_a, fake_b, fake_group, SIMILARITIES["cosine"](), fake_teacher))
        loss.backward()
        objective.after_step()
        assert loss.device == GPU
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert fake_a.embedding.grad is not None
        assert fake_a.embedding.grad.device == GPU
        assert all(p.grad.device == GPU for p in objective.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "chunk_size"), [*((case, 0) for case in CASES), ("distill", 4)])
def test_a_training_step_runs_on_the_device_of_the_space(tiny_recipe, case, chunk_size):
    """The optimizer included; the losses of two steps equal those on the CPU."""
    training = replace(tiny_recipe.training, grad_cache_chunk=chunk_size, precision="float32")

    def train_two_steps(space, objectives, batch, gpu=None):
        if gpu:
            gpu.move(space)
            gpu.move(objectives)
            fields = {"inputs": batch.inputs, "masks": batch.masks}
            fields = {key: {m: gpu.make_fake(x, GPU) for m, x in value.items()} for key, value in fields.items()}
            targets = gpu.make_fake(batch.teacher_targets, GPU)
            batch = replace(batch, group=gpu.make_fake(batch.group, GPU), teacher_targets=targets, **fields)
        optimizer = torch.optim.AdamW([*space.parameters(), *objectives.parameters()], lr=0.01)
        torch.manual_seed(0)
        losses = [take_step(space, objectives, optimizer, batch, training)["loss"] for _ in range(2)]
        return losses, {x.device for state in optimizer.state.values() for x in (state["exp_avg"],)}

    expected, _ = train_two_steps(*build_case(tiny_recipe, case))
    fake_case = build_case(tiny_recipe, case)
    with fake_device() as gpu:
        losses, devices = train_two_steps(*fake_case, gpu)
    assert losses == pytest.approx(expected, rel=1e-9)
    assert devices == {GPU}


@pytest.mark.parametrize("with_parts", [False, True])
def test_embedding_for_the_index_returns_features_on_the_cpu(tiny_recipe, with_parts):
    """From sources to features and keys: with the space on the GPU, and its similarity on the CPU."""
    space, _, _ = build_case(tiny_recipe, "matching by a metric")
    space.float().eval()
    items = {
        "image": [np.random.default_rng(i).integers(0, 256, (40, 60, 3), np.uint8) for i in range(3)],
        "audio": [(np.random.default_rng(i).standard_normal(8000 * i + 8000), 8000) for i in range(3)],
        "text": ["a dog barks", "rain", "rain on a tin roof"],
    }
    sources = {m: [to_source(item, m) for item in items[m]] for m in space.modalities}
    expected = {m: space.embed(sources[m], m, with_parts=with_parts).features for m in space.modalities}
    blocks = {m: next(encode_blocks(space.encoder(m), sources[m]))[0] for m in space.modalities}
    with fake_device() as gpu, torch.no_grad():
        for module in (space.encoders, space.heads, space.shared_head):
            gpu.move(module)
        assert space.device == GPU
        for m in space.modalities:
            features = space.embed(sources[m], m, with_parts=with_parts).features
            assert {features.embedding.device, features.parts.device, features.mask.device} == {CPU}
            assert torch.allclose(gpu.value_of(features.embedding), expected[m].embedding, atol=1e-6)
            assert space.similarity.keys(features).device == CPU
            pooled = torch.stack([torch.stack([p.mean(dim=0), p.amax(dim=0)]) for _, p in blocks[m]])
            mask = torch.ones(pooled.shape[:2], dtype=torch.bool)
            cached = space(m, pooled.to(GPU), mask.to(GPU), "pooled")
            assert cached.embedding.device == GPU


def test_scores_accept_features_on_another_device_than_the_similarity(tiny_recipe):
    """During training, the similarity is on the GPU, and validation has features on the CPU."""
    space, _, _ = build_case(tiny_recipe, "matching by a metric")
    dim = tiny_recipe.space.embed_dim
    a, b = (replace(random_features(4, dim, seed=i), modality=m) for i, m in enumerate(("image", "text")))
    expected = space.scores(a, b).detach()
    with fake_device() as gpu, torch.no_grad():
        gpu.move(space)
        scores = space.scores(a, b)
        assert scores.device == CPU
        assert torch.equal(gpu.value_of(scores), expected)


class _WrongSimilarity(Similarity):
    """Adds a constant that is neither a parameter nor a buffer, and therefore stays on the CPU."""

    is_exact = False

    def __init__(self):
        super().__init__()
        self.offset = torch.ones(EMBED_DIM)

    def forward(self, a, b):
        return self.query(a) @ self.keys(b).T

    def query(self, a):
        return a.embedding + self.offset

    def keys(self, b):
        return b.embedding[torch.arange(len(b.embedding))]


class _WrongMask(_WrongSimilarity):
    """Creates a mask on the CPU."""

    def query(self, a):
        return a.embedding.masked_fill(torch.zeros(a.embedding.shape, dtype=torch.bool), 0)


@pytest.mark.parametrize("similarity", [_WrongSimilarity, _WrongMask])
def test_a_constant_on_the_cpu_is_detected(similarity):
    features, wrong = padded_features(1), similarity()
    wrong(features, features)
    with fake_device() as gpu:
        fake = fake_features(gpu, features)
        with pytest.raises(RuntimeError, match=r"two devices|device"):
            wrong(fake, fake)


def test_a_module_that_is_not_moved_is_detected():
    layer = nn.Linear(EMBED_DIM, 2)
    with fake_device() as gpu, pytest.raises(RuntimeError, match="device"):
        layer(gpu.make_fake(torch.ones(3, EMBED_DIM), GPU))
