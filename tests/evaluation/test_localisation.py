"""Localisation: pointing results computed by hand, and oracle attributions on synthetic data."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.attribution import Attribution
from triptych.checkpoint import load
from triptych.data.synthetic import SyntheticConfig, generate, read_annotations
from triptych.errors import UsageError
from triptych.evaluation import localisation
from triptych.evaluation.localisation import intersection_size, localise, score_pointing
from triptych.space import Space

TILES = [(0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 1.0, 0.5), (0.0, 0.5, 0.5, 1.0), (0.5, 0.5, 1.0, 1.0)]


def test_attribution_on_the_target_hits_and_beside_it_misses():
    box = (0.5, 0.0, 1.0, 0.5)
    on = score_pointing(torch.tensor([0.0, 3.0, 1.0, -2.0]), TILES, box, distractors=[TILES[2]])
    assert on == localisation.PointingResult(
        hit=1.0, hit_chance_level=0.25, mass=0.75, mass_chance_level=0.25, discrimination=1.0
    )
    beside = score_pointing(torch.tensor([0.0, 1.0, 3.0, -2.0]), TILES, box, distractors=[TILES[2]])
    assert beside == localisation.PointingResult(
        hit=0.0, hit_chance_level=0.25, mass=0.25, mass_chance_level=0.25, discrimination=0.0
    )


def test_uniform_attribution_gives_chance_level():
    box = (0.4, 0.0, 1.0, 0.5)  # covers one tile, and a fifth of another, which does not count as on target
    even = score_pointing(torch.ones(4), TILES, box, distractors=[TILES[2]])
    assert even is not None
    assert even.hit == even.hit_chance_level == 0.25
    assert even.mass == pytest.approx(0.3)
    assert even.mass_chance_level == pytest.approx(0.3)
    assert even.discrimination == 0.5
    nothing = score_pointing(-torch.ones(4), TILES, box)
    assert nothing is not None
    assert nothing.mass == nothing.mass_chance_level


def test_a_target_smaller_than_a_part_is_hit_by_its_part():
    seconds = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    result = score_pointing(torch.tensor([0.0, 1.0, 0.0]), seconds, (1.1, 1.2))
    assert result is not None
    assert (result.hit, result.hit_chance_level) == (1.0, pytest.approx(1 / 3))
    assert (result.mass, result.mass_chance_level) == (pytest.approx(0.1), pytest.approx(0.1 / 3))


def test_parts_without_a_region_are_ignored():
    result = score_pointing(torch.tensor([9.0, 0.0, 1.0]), [(), (0.0, 1.0), (1.0, 2.0)], (1.0, 2.0))
    assert result is not None
    assert result.hit == 1.0
    assert score_pointing(torch.ones(2), [(), ()], (0.0, 1.0)) is None


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_overlap_is_the_intersection_area(ends):
    (a0, a1), (b0, b1), (c0, c1), (d0, d1) = (sorted(ends[i : i + 2]) for i in range(0, 8, 2))
    a, b = (a0, b0, a1, b1), (c0, d0, c1, d1)
    area = max(0.0, min(a1, c1) - max(a0, c0)) * max(0.0, min(b1, d1) - max(b0, d0))
    assert intersection_size(a, b) == intersection_size(b, a) == area
    assert intersection_size(a, ()) == intersection_size((), a) == intersection_size(a, (a0, a1)) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Synthetic data in which most scenes have two objects."""
    path = generate(
        SyntheticConfig(scenes=20, captions=2, max_objects=2, test_fraction=0.5),
        tmp_path_factory.mktemp("localisation") / "data",
    )
    return path.parent


@pytest.fixture(scope="module")
def space(run_dir) -> Space:
    return load(run_dir)


def oracle_attribution(folder, inverted):
    """An attribution of 1 where two parts belong to the same object, or, if inverted, where they do not."""
    scenes = {scene.id: scene for scene in read_annotations(folder)}
    captions = {caption.text: caption for scene in scenes.values() for caption in scene.captions}

    def objects_in(source, region, scene):
        object_indices = set()
        for index, annotation in enumerate(scene.objects):
            if source.modality == "text":
                words = [w for w in captions[source.content].words if index in w.object_indices]
                spans = [(w.start, w.end) for w in words]
            else:
                spans = [localisation._object_region(annotation, source.modality, (64, 64))]
            if any(intersection_size(region, span) for span in spans):
                object_indices.add(index)
        return object_indices

    def between(space, a, a_features, b, b_features):
        scene = scenes[a.content.stem]
        a_count, b_count = int(a_features.mask.sum()), int(b_features.mask.sum())
        a_regions, b_regions = (space.encoder(s.modality).part_locations(s, n) for s, n in ((a, a_count), (b, b_count)))
        a_objects, b_objects = (
            [objects_in(s, region, scene) for region in regions] for s, regions in ((a, a_regions), (b, b_regions))
        )
        values = torch.tensor([[float(bool(x & y) != inverted) for y in b_objects] for x in a_objects])
        return Attribution(a, b, values, a_regions, b_regions, 0.0)

    return between


@pytest.mark.slow
def test_oracle_attribution_scores_above_inverted_attribution(space, folder, monkeypatch):
    """The oracle uses the part locations of the encoders, so this also tests those."""
    monkeypatch.setattr(localisation, "compute_feature_attribution", oracle_attribution(folder, inverted=False))
    oracle = {(r.query, r.gallery): r for r in localise(space, folder, show_progress=False) if r.factor == "all"}
    assert set(oracle) == set(localisation.DIRECTIONS)
    monkeypatch.setattr(localisation, "compute_feature_attribution", oracle_attribution(folder, inverted=True))
    inverted = {(r.query, r.gallery): r for r in localise(space, folder, show_progress=False) if r.factor == "all"}
    for direction, result in oracle.items():
        assert result.discrimination == 1.0, direction
        assert result.hit > 2 * result.hit_chance_level, direction
        assert result.mass > 2 * result.mass_chance_level, direction
        assert inverted[direction].discrimination == 0.0, direction
        assert inverted[direction].hit < result.hit_chance_level, direction
        assert inverted[direction].mass < result.mass_chance_level, direction
        assert result.num_queries == inverted[direction].num_queries


def test_words_are_counted_by_factor(space, folder):
    results = localise(space, folder, show_progress=False)
    scenes = [scene for scene in read_annotations(folder) if scene.split == "test"]
    words = [word for scene in scenes for caption in scene.captions for word in caption.words]
    for gallery, attribute in (("image", "boxes"), ("audio", "time_spans")):
        rows = {r.factor: r.num_queries for r in results if (r.query, r.gallery) == ("text", gallery)}
        assert rows.pop("all") == sum(bool(getattr(word, attribute)) for word in words)
        for factor, queries in rows.items():
            assert queries == sum(word.factor == factor for word in words)
    for row in results:
        for fraction in (row.hit, row.hit_chance_level, row.mass, row.mass_chance_level):
            assert 0 <= fraction <= 1


def test_an_unknown_split_is_an_error(space, folder):
    with pytest.raises(UsageError, match="'nowhere'"):
        localise(space, folder, "nowhere", show_progress=False)
