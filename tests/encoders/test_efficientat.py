"""EfficientAT against the authors' network, a naive spectrogram and real audio."""

import csv
import math

import numpy as np
import pytest
import torch

from bench.real_data import read_esc50_clips
from tests.encoders.conftest import write_audio
from tests.encoders.test_encoders_pretrained import build_encoder
from tests.real_data import find_dataset_or_skip
from triptych.data.loader import collate
from triptych.encoders import efficientat
from triptych.encoders.efficientat import kaldi_mel_filters, log_mel_frames
from triptych.encoders.fetch import fetch_weights
from triptych.errors import CheckpointError
from triptych.interfaces import Source, Waveform

pytestmark = pytest.mark.slow


@torch.inference_mode()
def test_efficientat_matches_the_authors_network():
    """Embeddings and logits that the authors' code computed in float32 for three signals of 5 s."""
    encoder = build_encoder("efficientat_mn04")
    with np.load(find_dataset_or_skip("efficientat") / "check.npz") as check:
        waves, embedding, logits = (check[name].astype(np.float32) for name in ("wave", "embedding", "logits"))
    sources = [Source("audio", Waveform(wave, 32_000)) for wave in waves]
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    assert (parts.shape, mask.all()) == ((3, 16, 384), True)
    mean = parts.mean(dim=1)
    assert np.abs(mean.numpy() - embedding).max() < 1e-5 * np.abs(embedding).max()
    assert np.abs(encoder.class_logits(mean).numpy() - logits).max() < 1e-5 * np.abs(logits).max()
    assert torch.allclose(encoder.class_probabilities(mean), torch.from_numpy(logits).sigmoid(), atol=1e-5)


def test_log_mel_frames_match_a_naive_loop():
    """Frame by frame, filter by filter: pre-emphasis, reflected ends, symmetric Hann window, Kaldi's mel triangles."""
    samples = np.random.default_rng(0).normal(0, 0.1, 3000)
    emphasised = samples[1:] - 0.97 * samples[:-1]
    padded = np.pad(emphasised, 512, mode="reflect")
    window = np.pad(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(800) / 799), 112)
    edges = np.linspace(0, 1127 * math.log(1 + 15_000 / 700), 130)
    frames = log_mel_frames(torch.from_numpy(samples).float())
    assert frames.shape == (1 + len(emphasised) // 320, 128)
    for index, frame in enumerate(frames.tolist()):
        power = np.abs(np.fft.rfft(padded[320 * index : 320 * index + 1024] * window)) ** 2
        for band in range(0, 128, 9):
            left, centre, right = edges[band : band + 3]
            total = 0.0
            for k in range(512):  # the bin of the Nyquist frequency has no weight
                mel = 1127 * math.log(1 + k * 31.25 / 700)
                total += power[k] * max(0.0, min((mel - left) / (centre - left), (right - mel) / (right - centre)))
            assert frame[band] == pytest.approx((math.log(total + 1e-5) + 4.5) / 5, abs=1e-4)
    assert kaldi_mel_filters()[:, -1].abs().sum() == 0


@torch.inference_mode()
def test_a_clip_does_not_depend_on_the_padding_of_its_batch(make_tone):
    """Squeeze-and-excite averages over time, so padding would change every part."""
    encoder = build_encoder("efficientat_mn04")
    inputs = [encoder.prepare(make_tone(seconds)) for seconds in (0.5, 1.37, 3.2, 9.0)]
    batched, mask = encoder(*collate(inputs))
    assert mask.sum(dim=1).tolist() == [math.ceil(len(x) / 32) for x in inputs]
    for i, x in enumerate(inputs):
        separate, _ = encoder(x[None], torch.ones(1, len(x), dtype=torch.bool))
        assert torch.allclose(batched[i][mask[i]], separate[0], atol=2e-6)


def test_frame_gradient_is_centred_on_its_time_span():
    """The centroid of the squared gradient is inside the time span, for frames in the middle of noise.

    Receptive fields are longer than two seconds, and squeeze-and-excite draws centroids to the middle of the clip.
    """
    encoder = build_encoder("efficientat_mn04").requires_grad_(False)
    noise = np.random.default_rng(0).normal(0, 0.1, (4, 320_000)).astype(np.float32)
    inputs = torch.stack([encoder.prepare(Source("audio", Waveform(samples, 32_000))) for samples in noise])
    parts, mask = encoder(inputs.requires_grad_(), torch.ones(inputs.shape[:2], dtype=torch.bool))
    locations = encoder.part_locations(Source("audio", Waveform(noise[0], 32_000)), mask.shape[1])
    for index in range(14, 18):
        (gradient,) = torch.autograd.grad(parts[:, index].square().sum(), inputs, retain_graph=True)
        energy = gradient.square().sum(dim=(0, 2))
        centre = float((energy * torch.arange(len(energy)) * 0.01).sum() / energy.sum())
        start, end = locations[index]
        assert start <= centre <= end, index


@pytest.mark.parametrize(("seconds", "frames"), [(0.001, 32), (0.32, 32), (0.5, 50), (1.0, 100), (30.0, 1000)])
def test_efficientat_number_of_frames(tmp_path, seconds, frames):
    samples = np.random.default_rng(0).normal(0, 0.1, round(32_000 * seconds))
    source = write_audio(tmp_path / "noise.wav", samples, 32_000)
    inputs = build_encoder("efficientat_mn04").prepare(source)
    assert inputs.shape == (frames, 128)
    assert torch.isfinite(inputs).all()


@torch.inference_mode()
def test_efficientat_classifies_real_audio():
    encoder = build_encoder("efficientat_mn04")
    with (find_dataset_or_skip("efficientat") / "audioset_classes.csv").open(encoding="utf-8", newline="") as file:
        names = tuple(row["display_name"] for row in csv.DictReader(file))
    assert names == encoder.class_names()
    class_of_category = {
        "dog": "Dog", "rooster": "Chicken, rooster", "cow": "Cattle, bovinae", "rain": "Rain", "siren": "Siren",
        "crying_baby": "Baby cry, infant cry", "sea_waves": "Waves, surf", "church_bells": "Church bell",
    }  # fmt: skip
    clips = read_esc50_clips(find_dataset_or_skip("esc50"))
    is_in_top5 = []
    for category, name in class_of_category.items():
        paths = [path for path, _, _, clip_category in clips if clip_category == category][:5]
        parts, _ = encoder(*collate([encoder.prepare(Source("audio", path)) for path in paths]))
        best = encoder.class_probabilities(parts.mean(dim=1)).topk(5).indices.tolist()
        is_in_top5 += [names.index(name) in row for row in best]
    assert np.mean(is_in_top5) >= 0.8


def test_the_release_file_is_unpickled_only_if_its_digest_matches(tmp_path, monkeypatch):
    """A file of torch.save with the name of the release file, but other content."""
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path))
    path = efficientat.WEIGHTS.installed_path("mn04_as_mAP_432.pt")
    path.parent.mkdir()
    torch.save({"features.0.0.weight": torch.zeros(8, 1, 3, 3)}, path)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(CheckpointError, match=r"unexpected weights: .*expected 899a8c6217063f69…"):
        efficientat.EfficientAT()
    with pytest.raises(CheckpointError, match="not the weights of efficientat_mn04"):
        fetch_weights(efficientat.EfficientAT, path)
