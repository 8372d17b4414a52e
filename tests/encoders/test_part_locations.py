"""Locations of parts: known answers, and gradients that are centred on them."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from tests.encoders import tiny_models
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.encoders.backbone import HuggingFaceAudio, HuggingFaceImage, HuggingFaceText
from triptych.encoders.joint import JointImage
from triptych.encoders.part_locations import (
    centre_crop_region,
    character_spans,
    grid_regions,
    square_grid_regions,
    time_spans,
)
from triptych.interfaces import Source

RATE, SECONDS = 16_000, 2.0
BUILT_IN = [name for name in ENCODERS if not name.startswith(("hf_", "joint_"))]


def build_encoder(name):
    """Build an encoder with a small vocabulary, or skip the test."""
    if reason := ENCODERS[name].unavailable_reason():
        pytest.skip(f"{name}: {reason}")
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    encoder.fit_vocabulary([Source("text", "two red bells ring")])
    return encoder


@pytest.fixture
def media(tmp_path):
    """An image of 96 × 64 pixels and two seconds of audio, both noise, and a text."""
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", rng.normal(0, 0.1, round(RATE * SECONDS)), RATE)
    return {
        "image": Source("image", tmp_path / "a.png"),
        "audio": Source("audio", tmp_path / "a.wav"),
        "text": Source("text", "Two red  bells ring"),
    }


def count_parts(encoder, source):
    """Return the number of parts of a source."""
    with torch.inference_mode():
        return int(encoder(*collate([encoder.prepare(source)]))[1].sum())


@pytest.mark.parametrize("name", BUILT_IN)
def test_locations_lie_inside_source(name, media):
    encoder = build_encoder(name)
    source = media[encoder.modality]
    locations = encoder.part_locations(source, count_parts(encoder, source))
    assert len(locations) == count_parts(encoder, source)
    half = {"image": 2, "audio": 1, "text": 1}[encoder.modality]
    limit = {"image": 1.0, "audio": 2 * SECONDS, "text": len("Two red bells ring")}[encoder.modality]
    for location in filter(None, locations):
        assert len(location) == 2 * half
        assert all(0 <= low < high <= limit for low, high in zip(location[:half], location[half:], strict=True))


@pytest.mark.parametrize("name", ["image_cnn", "image_conv2d"])
def test_region_gradient_is_centred_on_its_location(name, media):
    """The centroid of the squared gradient over pixels is inside the region, for images of noise."""
    encoder = build_encoder(name).requires_grad_(False)
    size = encoder.prepare(media["image"]).shape[0]
    inputs = (255 * torch.rand(16, size, size, 3)).requires_grad_()
    parts, _ = encoder(inputs, torch.ones(16, size, dtype=torch.bool))
    locations, ramp = encoder.part_locations(media["image"], parts.shape[1]), torch.linspace(0, 1, size)
    inner = [i for i, (x0, y0, x1, y1) in enumerate(locations) if min(x0, y0) >= 0.24 and max(x1, y1) <= 0.76]
    assert inner
    for index in inner:
        (gradient,) = torch.autograd.grad(parts[:, index].square().sum(), inputs, retain_graph=True)
        energy = gradient.square().sum(dim=(0, 3))  # (height, width)
        x, y = ((energy.sum(dim=d) * ramp).sum().item() / energy.sum().item() for d in (0, 1))
        x0, y0, x1, y1 = locations[index]
        assert (x0 < x < x1, y0 < y < y1) == (True, True), index


def test_efficientnet_regions_are_in_order(media):
    """Receptive fields cover most of the image, but their centroids are in the order of the regions."""
    encoder = build_encoder("efficientnet_lite0").requires_grad_(False)
    inputs, mask = collate([encoder.prepare(media["image"])])
    inputs = inputs.float().requires_grad_()
    parts, _ = encoder(inputs, mask)
    centres = {}
    for index in (0, 6, 42, 48):
        (gradient,) = torch.autograd.grad(parts[0, index].square().sum(), inputs, retain_graph=True)
        energy, ramp = gradient[0].square().sum(dim=2), torch.linspace(0, 1, inputs.shape[1])
        centres[index] = [(energy.sum(dim=d) * ramp).sum().item() / energy.sum().item() for d in (0, 1)]
    locations = encoder.part_locations(media["image"], 49)
    for one, other, axis in ((0, 6, 0), (42, 48, 0), (0, 42, 1), (6, 48, 1)):
        assert centres[one][axis] + 0.1 < centres[other][axis]
        assert locations[one][axis] < locations[other][axis]


@pytest.mark.parametrize("name", ["audio_cnn", "audio_conv1d", "speech_cnn", "soundnet"])
def test_frame_gradient_is_centred_on_its_time_span(name, media):
    """The centroid of the squared gradient over frames is inside the time span, away from both ends."""
    encoder = build_encoder(name).requires_grad_(False)
    inputs, mask = collate([encoder.prepare(media["audio"])])
    inputs.requires_grad_()
    parts, _ = encoder(inputs, mask)
    locations = encoder.part_locations(media["audio"], parts.shape[1])
    times = torch.linspace(0, SECONDS, inputs.shape[1])
    for index in range(len(locations) // 3, 2 * len(locations) // 3 + 1):
        (gradient,) = torch.autograd.grad(parts[0, index].square().sum(), inputs, retain_graph=True)
        energy = gradient[0].square().flatten(1).sum(dim=1) if gradient.ndim > 2 else gradient[0].square()
        centre = float((energy * times).sum() / energy.sum())
        start, end = locations[index]
        assert start - 0.02 <= centre <= end + 0.02, index


def test_known_locations_of_pretrained_encoders(media):
    image, audio = media["image"], media["audio"]  # 96 × 64: the crop is the middle 56 × 56
    tiles = build_encoder("efficientnet_lite0").part_locations(image, 49)
    assert tiles[0] == pytest.approx((20 / 96, 4 / 64, 28 / 96, 12 / 64))
    assert tiles[6] == pytest.approx((68 / 96, 4 / 64, 76 / 96, 12 / 64))
    assert tiles[48] == pytest.approx((68 / 96, 52 / 64, 76 / 96, 60 / 64))
    later = Source("audio", audio.content, start=0.5)
    frames = build_encoder("yamnet").part_locations(later, 3)
    assert frames == [pytest.approx((0.5 + 0.48 * i, 0.5 + 0.48 * i + 0.975)) for i in range(3)]
    frames = build_encoder("efficientat_mn04").part_locations(later, 3)
    assert frames == [pytest.approx(span) for span in ((0.5, 0.66), (0.66, 0.98), (0.98, 1.3))]
    minilm = build_encoder("minilm")
    text = Source("text", "Two  handbells ring")
    spans = minilm.part_locations(text, count_parts(minilm, text))
    assert [spans[0], spans[-1]] == [(), ()]
    assert [("Two handbells ring")[int(s) : int(e)] for s, e in spans[1:-1]] == ["Two", "hand", "bell", "s", "ring"]


def test_known_locations_of_trainable_encoders(media):
    encoder = build_encoder("image_cnn")
    assert encoder.part_locations(media["image"], 64)[9] == pytest.approx((4.5 / 64, 4.5 / 64, 12.5 / 64, 12.5 / 64))
    frames = build_encoder("speech_cnn").part_locations(media["audio"], 3)
    assert frames == [pytest.approx(span) for span in ((0, 0.08), (0.08, 0.24), (0.24, 0.4))]
    tokens = build_encoder("text_transformer").part_locations(Source("text", " two  red bells"), 3)
    assert tokens == [(0, 3), (4, 7), (8, 13)]
    accents = build_encoder("text_conv1d")
    text = Source("text", "ﬁve bells")  # a ligature, which is normalised to two letters
    assert accents.part_locations(text, count_parts(accents, text))[-1][1] == 9


def test_hugging_face_locations_follow_crop_and_special_tokens(media, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
    vit = HuggingFaceImage(
        str(tiny_models.vit(tmp_path / "vit"))
    ).eval()  # resizes without cropping; a class token and 2 × 2 tiles
    locations = vit.part_locations(media["image"], count_parts(vit, media["image"]))
    assert locations[0] == ()
    assert locations[1:] == [pytest.approx(location, abs=0.02) for location in grid_regions(2, 2)]
    clip = HuggingFaceImage(str(tiny_models.clip(tmp_path / "clip"))).eval()  # the middle 64 × 64 of 96 × 64
    locations = clip.part_locations(media["image"], count_parts(clip, media["image"]))
    assert locations[1:] == [pytest.approx(location, abs=0.02) for location in grid_regions(2, 2, (1 / 6, 0, 5 / 6, 1))]
    bert = HuggingFaceText(str(tiny_models.bert(tmp_path / "bert"))).eval()
    assert bert.part_locations(Source("text", "two  birds sing"), 5) == [(), (0, 3), (4, 9), (10, 14), ()]
    waves = HuggingFaceAudio(str(tiny_models.wav2vec2(tmp_path / "wave"))).eval()
    count = count_parts(waves, media["audio"])
    spans = waves.part_locations(media["audio"], count)
    assert len(spans) == count
    assert (spans[0][0], spans[-1][1]) == (0, pytest.approx(SECONDS))
    fixed = HuggingFaceAudio(str(tiny_models.spectrogram_transformer(tmp_path / "ast")), max_seconds=0.5).eval()
    assert set(fixed.part_locations(media["audio"], count_parts(fixed, media["audio"]))) == {()}
    joint = JointImage(str(tmp_path / "clip")).eval()
    assert joint.part_locations(media["image"], 1) == [()]


def test_location_functions():
    assert grid_regions(1, 2) == [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]
    assert grid_regions(2, 1, shift=-0.5) == [(0, 0, 0.5, 0.25), (0, 0.25, 0.5, 0.75)]
    assert square_grid_regions(6) == [(), (), *grid_regions(2, 2)]
    assert centre_crop_region(200, 100, 50, 50) == (0.375, 0.25, 0.625, 0.75)
    assert centre_crop_region(50, 100, 80, 50) == (0, 0.25, 1, 0.75)
    source = Source("audio", Path("a.wav"), start=3.0)
    assert time_spans(source, 2, 0.5, 0.0) == [(3.0, 3.25), (3.25, 3.75)]
    assert time_spans(source, 2, 0.5, 0.5, duration=1.0) == [(3.0, 4.0), (3.5, 4.5)]
    assert character_spans("a bell", [(0, 0), (0, 1), (1, 6), (6, 6)]) == [(), (0, 1), (2, 6), ()]
