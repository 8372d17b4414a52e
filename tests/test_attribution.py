"""Attribution: values sum to the score, sources are ordered, padding is removed."""

import pytest
import torch

from tests.similarities.test_similarities import random_features
from triptych.attribution import compute_attribution, drop_padding
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import sources_of
from triptych.errors import UsageError
from triptych.interfaces import Source


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


@pytest.fixture(scope="module")
def image(synthetic_manifest):
    return sources_of(manifest.read(synthetic_manifest).rows[0], "image")[0]


def test_cosine_attribution_sums_to_the_score(space, image):
    """With mean pooling and linear heads the contributions are exact."""
    a, b = image, Source("text", "Two red bells ring.")
    attribution = compute_attribution(space, b, a)
    assert (attribution.a, attribution.b) == (a, b)
    assert attribution.values.sum().item() == pytest.approx(attribution.score, abs=1e-5)
    assert attribution.values.shape == (len(attribution.a_locations), len(attribution.b_locations))
    assert attribution.score == pytest.approx(float(space.scores(space.embed_one(b), space.embed_one(a))))
    start, end = map(int, attribution.b_locations[0])
    assert str(b.content)[start:end] == "Two"


def test_view_from_transposes_for_the_second_modality(space, image):
    attribution = compute_attribution(space, image, Source("text", "a bell"))
    values, locations, other_locations = attribution.view_from("text")
    assert torch.equal(values, attribution.values.T)
    assert (locations, other_locations) == (attribution.b_locations, attribution.a_locations)
    assert torch.equal(attribution.view_from("image")[0], attribution.values)


def test_two_sources_of_one_modality_are_an_error(space):
    with pytest.raises(UsageError, match="both items are text"):
        compute_attribution(space, Source("text", "a"), Source("text", "b"))


def test_drop_padding_keeps_the_real_parts():
    features = random_features(1)
    features.mask[0, -1] = False
    trimmed = drop_padding(features)
    assert trimmed.mask.all()
    assert torch.equal(trimmed.parts[0], features.parts[0, features.mask[0]])
