"""The map: what is alike lies together, whatever its modality; the same keys give the same map."""

import numpy as np
import pytest

from triptych.search import map as maps
from triptych.search.map import project


@pytest.fixture(scope="module")
def keys():
    """Five things in two modalities that lie in different regions of the space."""
    rng = np.random.default_rng(0)
    things = rng.normal(size=(5, 16))
    offsets = rng.normal(size=(2, 16)) * 4
    label = np.repeat(np.arange(5), 20)
    return [(things[label] + offset + 0.1 * rng.normal(size=(100, 16))).astype(np.float32) for offset in offsets], label


def together(places, label):
    """The share of points whose nearest point of the other modality is of the same thing."""
    gaps = ((places[0][:, None] - places[1][None]) ** 2).sum(2)
    return float((label[gaps.argmin(axis=1)] == label).mean())


@pytest.mark.slow
def test_things_lie_together_across_modalities(keys):
    places = project(keys[0])
    assert [p.shape for p in places] == [(100, 2), (100, 2)]
    assert all(p.min() >= 0 and p.max() <= 1 for p in places)
    assert together(places, keys[1]) > 0.95
    again = project(keys[0])
    assert all(np.array_equal(one, other) for one, other in zip(places, again, strict=True))


def test_what_is_too_much_for_the_layout_is_put_among_its_like(keys, monkeypatch):
    monkeypatch.setattr(maps, "LANDMARKS", 80)
    assert together(project(keys[0]), keys[1]) > 0.95


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_a_few_items_have_a_map_as_well(count):
    (places,) = project([np.random.default_rng(1).normal(size=(count, 8)).astype(np.float32)])
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()
    assert project([]) == [] or len(project([])) <= 1
