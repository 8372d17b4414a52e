"""Where parts lie: known answers for each kind, and that a part does look mostly at its own place."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from bench.real_data import yamnet_weights
from tests.encoders import tiny_models
from triptych.contracts import Source
from triptych.data.loader import collate
from triptych.encoders import ENCODERS, yamnet
from triptych.encoders.backbone import HuggingFaceAudio, HuggingFaceImage, HuggingFaceText
from triptych.encoders.joint import JointImage
from triptych.encoders.places import characters, grid, middle, square_grid, steps

RATE, SECONDS = 16_000, 2.0
OWN = [name for name in ENCODERS if not name.startswith(("hf_", "joint_"))]


def made(name, monkeypatch):
    """An encoder of the registry that has learned a few words, or the test is skipped."""
    if weights := yamnet_weights():
        monkeypatch.setenv(yamnet.OWN_VARIABLE, weights)
    if lacks := ENCODERS[name].missing():
        pytest.skip(f"{name}: {lacks}")
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    encoder.learn([Source("text", "two red bells ring")])
    return encoder


@pytest.fixture
def media(tmp_path):
    """A picture of 96 × 64 pixels and two seconds of sound, all noise, and a text."""
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", rng.normal(0, 0.1, round(RATE * SECONDS)), RATE)
    return {
        "image": Source("image", tmp_path / "a.png"),
        "audio": Source("audio", tmp_path / "a.wav"),
        "text": Source("text", "Two red  bells ring"),
    }


def counted(encoder, source):
    """How many parts the encoder makes of a source."""
    with torch.inference_mode():
        return int(encoder(*collate([encoder.prepare(source)]))[1].sum())


@pytest.mark.parametrize("name", OWN)
def test_every_part_has_a_place_inside_its_source(name, media, monkeypatch):
    encoder = made(name, monkeypatch)
    source = media[encoder.modality]
    places = encoder.places(source, counted(encoder, source))
    assert len(places) == counted(encoder, source)
    half = {"image": 2, "audio": 1, "text": 1}[encoder.modality]
    most = {"image": 1.0, "audio": 2 * SECONDS, "text": len("Two red bells ring")}[encoder.modality]
    for place in filter(None, places):
        assert len(place) == 2 * half
        assert all(0 <= low < high <= most for low, high in zip(place[:half], place[half:], strict=True))


@pytest.mark.parametrize("name", ["image_cnn", "image_conv2d"])
def test_a_region_looks_around_its_own_place(name, media, monkeypatch):
    """The middle of the squared gradient by pixels, over a few pictures of noise, lies in the part's place."""
    encoder = made(name, monkeypatch).requires_grad_(False)
    across = encoder.prepare(media["image"]).shape[0]
    inputs = (255 * torch.rand(16, across, across, 3)).requires_grad_()
    parts, _ = encoder(inputs, torch.ones(16, across, dtype=torch.bool))
    places, ramp = encoder.places(media["image"], parts.shape[1]), torch.linspace(0, 1, across)
    inner = [i for i, (x0, y0, x1, y1) in enumerate(places) if min(x0, y0) >= 0.24 and max(x1, y1) <= 0.76]
    assert inner
    for number in inner:
        (slope,) = torch.autograd.grad(parts[:, number].square().sum(), inputs, retain_graph=True)
        energy = slope.square().sum(dim=(0, 3))  # (height, width)
        x, y = ((energy.sum(dim=d) * ramp).sum().item() / energy.sum().item() for d in (0, 1))
        x0, y0, x1, y1 = places[number]
        assert (x0 < x < x1, y0 < y < y1) == (True, True), number


def test_regions_of_a_deep_network_are_in_order(media, monkeypatch):
    """Each part of EfficientNet sees almost everything, but those of the right and of the bottom further there."""
    encoder = made("efficientnet_lite0", monkeypatch).requires_grad_(False)
    inputs, mask = collate([encoder.prepare(media["image"])])
    inputs = inputs.float().requires_grad_()
    parts, _ = encoder(inputs, mask)
    centres = {}
    for number in (0, 6, 42, 48):
        (slope,) = torch.autograd.grad(parts[0, number].square().sum(), inputs, retain_graph=True)
        energy, ramp = slope[0].square().sum(dim=2), torch.linspace(0, 1, inputs.shape[1])
        centres[number] = [(energy.sum(dim=d) * ramp).sum().item() / energy.sum().item() for d in (0, 1)]
    places = encoder.places(media["image"], 49)
    for one, other, axis in ((0, 6, 0), (42, 48, 0), (0, 42, 1), (6, 48, 1)):
        assert centres[one][axis] + 0.1 < centres[other][axis]
        assert places[one][axis] < places[other][axis]


@pytest.mark.parametrize("name", ["audio_cnn", "audio_conv1d", "speech_cnn", "soundnet"])
def test_a_moment_hears_around_its_own_time(name, media, monkeypatch):
    """The middle of the squared gradient by frames lies in the part's place, away from both ends."""
    encoder = made(name, monkeypatch).requires_grad_(False)
    inputs, mask = collate([encoder.prepare(media["audio"])])
    inputs.requires_grad_()
    parts, _ = encoder(inputs, mask)
    places = encoder.places(media["audio"], parts.shape[1])
    times = torch.linspace(0, SECONDS, inputs.shape[1])
    for number in range(len(places) // 3, 2 * len(places) // 3 + 1):
        (slope,) = torch.autograd.grad(parts[0, number].square().sum(), inputs, retain_graph=True)
        energy = slope[0].square().flatten(1).sum(dim=1) if slope.ndim > 2 else slope[0].square()
        centre = float((energy * times).sum() / energy.sum())
        start, end = places[number]
        assert start - 0.02 <= centre <= end + 0.02, number


def test_known_places_of_the_pretrained(media, monkeypatch):
    picture, sound = media["image"], media["audio"]  # 96 × 64: the middle 56 × 56 of it is seen
    tiles = made("efficientnet_lite0", monkeypatch).places(picture, 49)
    assert tiles[0] == pytest.approx((20 / 96, 4 / 64, 28 / 96, 12 / 64))
    assert tiles[6] == pytest.approx((68 / 96, 4 / 64, 76 / 96, 12 / 64))
    assert tiles[48] == pytest.approx((68 / 96, 52 / 64, 76 / 96, 60 / 64))
    later = Source("audio", sound.content, start=0.5)
    hears = made("yamnet", monkeypatch).places(later, 3)
    assert hears == [pytest.approx((0.5 + 0.48 * i, 0.5 + 0.48 * i + 0.975)) for i in range(3)]
    minilm = made("minilm", monkeypatch)
    text = Source("text", "Two  handbells ring")
    spans = minilm.places(text, counted(minilm, text))
    assert [spans[0], spans[-1]] == [(), ()]
    assert [("Two handbells ring")[int(s) : int(e)] for s, e in spans[1:-1]] == ["Two", "hand", "bell", "s", "ring"]


def test_known_places_of_the_trainable(media, monkeypatch):
    encoder = made("image_cnn", monkeypatch)
    assert encoder.places(media["image"], 64)[9] == pytest.approx((4.5 / 64, 4.5 / 64, 12.5 / 64, 12.5 / 64))
    moments = made("speech_cnn", monkeypatch).places(media["audio"], 3)
    assert moments == [pytest.approx(span) for span in ((0, 0.08), (0.08, 0.24), (0.24, 0.4))]
    words = made("text_transformer", monkeypatch).places(Source("text", " two  red bells"), 3)
    assert words == [(0, 3), (4, 7), (8, 13)]
    accents = made("text_conv1d", monkeypatch)
    text = Source("text", "ﬁve bells")  # a ligature, which the vocabulary reads as two letters
    assert accents.places(text, counted(accents, text))[-1][1] == 9


def test_hugging_face_places_follow_crop_tokens_and_marks(media, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
    vit = HuggingFaceImage(str(tiny_models.vit(tmp_path / "vit"))).eval()  # squeezes; a class token and 2 × 2 tiles
    places = vit.places(media["image"], counted(vit, media["image"]))
    assert places[0] == ()
    assert places[1:] == [pytest.approx(place, abs=0.02) for place in grid(2, 2)]
    clip = HuggingFaceImage(str(tiny_models.clip(tmp_path / "clip"))).eval()  # the middle 64 × 64 of 96 × 64
    places = clip.places(media["image"], counted(clip, media["image"]))
    assert places[1:] == [pytest.approx(place, abs=0.02) for place in grid(2, 2, (1 / 6, 0, 5 / 6, 1))]
    bert = HuggingFaceText(str(tiny_models.bert(tmp_path / "bert"))).eval()
    assert bert.places(Source("text", "two  birds sing"), 5) == [(), (0, 3), (4, 9), (10, 14), ()]
    waves = HuggingFaceAudio(str(tiny_models.wav2vec2(tmp_path / "wave"))).eval()
    count = counted(waves, media["audio"])
    spans = waves.places(media["audio"], count)
    assert len(spans) == count
    assert (spans[0][0], spans[-1][1]) == (0, pytest.approx(SECONDS))
    fixed = HuggingFaceAudio(str(tiny_models.spectrogram_transformer(tmp_path / "ast")), seconds=0.5).eval()
    assert set(fixed.places(media["audio"], counted(fixed, media["audio"]))) == {()}
    whole = JointImage(str(tmp_path / "clip")).eval()
    assert whole.places(media["image"], 1) == [()]


def test_grids_steps_and_characters():
    assert grid(1, 2) == [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]
    assert grid(2, 1, shift=-0.5) == [(0, 0, 0.5, 0.25), (0, 0.25, 0.5, 0.75)]
    assert square_grid(6) == [(), (), *grid(2, 2)]
    assert middle(200, 100, 50, 50) == (0.375, 0.25, 0.625, 0.75)
    assert middle(50, 100, 80, 50) == (0, 0.25, 1, 0.75)
    source = Source("audio", Path("a.wav"), start=3.0)
    assert steps(source, 2, 0.5, 0.0) == [(3.0, 3.25), (3.25, 3.75)]
    assert steps(source, 2, 0.5, 0.5, length=1.0) == [(3.0, 4.0), (3.5, 4.5)]
    assert characters("a bell", [(0, 0), (0, 1), (1, 6), (6, 6)]) == [(), (0, 1), (2, 6), ()]
