"""Properties of the pretrained audio encoders."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bench.real_data import read_esc50_clips
from tests.real_data import find_dataset_or_skip
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


def build_encoder(name, **settings) -> Any:
    """Build a pretrained encoder, or skip the test."""
    if reason := ENCODERS[name].unavailable_reason():
        pytest.skip(f"{name}: {reason}")
    return ENCODERS[name](**settings).eval()


@pytest.mark.parametrize(("name", "min_accuracy"), [("yamnet", 0.9), ("efficientat_mn04", 0.95), ("soundnet", 0.6)])
@torch.inference_mode()
def test_audio_classes_cluster(name, min_accuracy):
    """Nearest-centroid classification of five ESC-50 classes, with four clips per centroid; chance level 0.2."""
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
    queries = torch.stack([e[4:] for e in embedded])  # (classes, 4, feature_dim)
    predictions = (queries @ centroids.T).argmax(dim=2)
    assert (predictions == torch.arange(len(categories))[:, None]).float().mean() >= min_accuracy


@pytest.mark.parametrize("name", ["yamnet", "efficientat_mn04", "soundnet"])
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
