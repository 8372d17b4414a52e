"""The projection places similar items close together across modalities, and is deterministic."""

import numpy as np
import pytest

from triptych.search import projection
from triptych.search.projection import project_2d


@pytest.fixture(scope="module")
def keys():
    """Keys of five concepts in two modalities with an offset between them."""
    rng = np.random.default_rng(0)
    concepts = rng.normal(size=(5, 16))
    offsets = rng.normal(size=(2, 16)) * 4
    label = np.repeat(np.arange(5), 20)
    return [
        (concepts[label] + offset + 0.1 * rng.normal(size=(100, 16))).astype(np.float32) for offset in offsets
    ], label


def measure_agreement(points, label):
    """Return the fraction of points whose nearest point of the other modality has the same label."""
    squared_distances = ((points[0][:, None] - points[1][None]) ** 2).sum(2)
    return float((label[squared_distances.argmin(axis=1)] == label).mean())


@pytest.mark.slow
def test_matching_items_are_close_across_modalities(keys):
    points = project_2d(keys[0])
    assert [p.shape for p in points] == [(100, 2), (100, 2)]
    assert all(p.min() >= 0 and p.max() <= 1 for p in points)
    assert measure_agreement(points, keys[1]) > 0.95
    again = project_2d(keys[0])
    assert all(np.array_equal(a, b) for a, b in zip(points, again, strict=True))


def test_items_beyond_the_landmarks_are_placed_by_their_neighbours(keys, monkeypatch):
    monkeypatch.setattr(projection, "TSNE_LANDMARKS", 80)
    assert measure_agreement(project_2d(keys[0]), keys[1]) > 0.95


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_a_projection_of_few_items_is_finite(count):
    (points,) = project_2d([np.random.default_rng(1).normal(size=(count, 8)).astype(np.float32)])
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert project_2d([]) == [] or len(project_2d([])) <= 1
