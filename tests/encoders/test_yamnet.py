"""YAMNet against the published spectrogram, and on real audio."""

import csv

import numpy as np
import pytest
import soundfile
import torch

from bench.real_data import read_esc50_clips
from tests.encoders.test_encoders_pretrained import build_encoder
from tests.real_data import find_dataset_or_skip
from triptych.data.loader import collate
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


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
    with (find_dataset_or_skip("yamnet") / "yamnet_class_map.csv").open(encoding="utf-8", newline="") as file:
        assert names == tuple(row["display_name"] for row in csv.DictReader(file))
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
