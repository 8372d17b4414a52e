"""Where heat falls, against answers worked out by hand, and on the made world with spaces that know them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.checkpoint import load
from triptych.contracts import Source
from triptych.data.world import World, make, read_truth
from triptych.errors import UsageError
from triptych.evaluation import localisation
from triptych.evaluation.localisation import aim, localise, overlap
from triptych.heat import Heat, heat
from triptych.space import Space

TILES = [(0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 1.0, 0.5), (0.0, 0.5, 0.5, 1.0), (0.5, 0.5, 1.0, 1.0)]


def test_a_heat_on_the_thing_hits_and_one_beside_it_misses():
    box = (0.5, 0.0, 1.0, 0.5)
    on = aim(torch.tensor([0.0, 3.0, 1.0, -2.0]), TILES, box, others=[TILES[2]])
    assert on == localisation.Aim(hit=1.0, hit_chance=0.25, mass=0.75, mass_chance=0.25, apart=1.0)
    beside = aim(torch.tensor([0.0, 1.0, 3.0, -2.0]), TILES, box, others=[TILES[2]])
    assert beside == localisation.Aim(hit=0.0, hit_chance=0.25, mass=0.25, mass_chance=0.25, apart=0.0)


def test_even_heat_gives_chance_exactly():
    box = (0.4, 0.0, 1.0, 0.5)  # a whole tile and a fifth of another, which does not count as on it
    even = aim(torch.ones(4), TILES, box, others=[TILES[2]])
    assert even is not None
    assert even.hit == even.hit_chance == 0.25
    assert even.mass == pytest.approx(0.3)
    assert even.mass_chance == pytest.approx(0.3)
    assert even.apart == 0.5
    nothing = aim(-torch.ones(4), TILES, box)
    assert nothing is not None
    assert nothing.mass == nothing.mass_chance


def test_a_thing_smaller_than_a_part_is_hit_by_the_part_that_holds_it():
    seconds = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    found = aim(torch.tensor([0.0, 1.0, 0.0]), seconds, (1.1, 1.2))
    assert found is not None
    assert (found.hit, found.hit_chance) == (1.0, pytest.approx(1 / 3))
    assert (found.mass, found.mass_chance) == (pytest.approx(0.1), pytest.approx(0.1 / 3))


def test_parts_that_lie_nowhere_are_not_asked():
    found = aim(torch.tensor([9.0, 0.0, 1.0]), [(), (0.0, 1.0), (1.0, 2.0)], (1.0, 2.0))
    assert found is not None
    assert found.hit == 1.0
    assert aim(torch.ones(2), [(), ()], (0.0, 1.0)) is None


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_overlap_is_the_share_of_points_in_both(ends):
    (a0, a1), (b0, b1), (c0, c1), (d0, d1) = (sorted(ends[i : i + 2]) for i in range(0, 8, 2))
    one, other = (a0, b0, a1, b1), (c0, d0, c1, d1)
    area = max(0.0, min(a1, c1) - max(a0, c0)) * max(0.0, min(b1, d1) - max(b0, d0))
    assert overlap(one, other) == overlap(other, one) == area
    assert overlap(one, ()) == overlap((), one) == overlap(one, (a0, a1)) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Scenes with two things in most of them."""
    made = make(World(scenes=20, captions=2, actors=2, test=0.5), tmp_path_factory.mktemp("places") / "world")
    return made.parent


@pytest.fixture(scope="module")
def space(run) -> Space:
    return load(run)


def knowing(folder, wrong):
    """A heat that is 1 where a part lies on what the other part speaks of or sounds of, or on what it does not."""
    truths = {truth.id: truth for truth in read_truth(folder)}
    captions = {caption.text: (truth, caption) for truth in truths.values() for caption in truth.captions}

    def performers(source, place, truth):
        found = set()
        for number, performer in enumerate(truth.performers):
            if source.modality == "text":
                words = [w for w in captions[source.content][1].words if number in w.actors]
                spans = [(w.start, w.end) for w in words]
            else:
                spans = [localisation._place(performer, source.modality, (64, 64))]
            if any(overlap(place, span) for span in spans):
                found.add(number)
        return found

    def between(space, a, a_features, b, b_features):
        truth = truths[a.content.stem]
        a_count, b_count = int(a_features.mask.sum()), int(b_features.mask.sum())
        a_places, b_places = (space.encoder(s.modality).places(s, n) for s, n in ((a, a_count), (b, b_count)))
        a_about, b_about = ([performers(s, p, truth) for p in some] for s, some in ((a, a_places), (b, b_places)))
        values = torch.tensor([[float(bool(one & other) != wrong) for other in b_about] for one in a_about])
        return Heat(a, b, values, a_places, b_places, 0.0)

    return between


@pytest.mark.slow
def test_a_space_that_knows_everything_is_told_apart_from_one_that_knows_the_opposite(space, folder, monkeypatch):
    """Perfect heat is made from the truth through the encoders' own places, so this also checks those."""
    monkeypatch.setattr(localisation, "heat_between", knowing(folder, wrong=False))
    right = {(r.query, r.gallery): r for r in localise(space, folder, show=False) if r.about == "all"}
    assert set(right) == set(localisation.ASKED)
    monkeypatch.setattr(localisation, "heat_between", knowing(folder, wrong=True))
    wrong = {(r.query, r.gallery): r for r in localise(space, folder, show=False) if r.about == "all"}
    for direction, found in right.items():
        assert found.apart == 1.0, direction
        assert found.hit > 2 * found.hit_chance, direction
        assert found.mass > 2 * found.mass_chance, direction
        assert wrong[direction].apart == 0.0, direction
        assert wrong[direction].hit < found.hit_chance, direction
        assert wrong[direction].mass < found.mass_chance, direction
        assert found.queries == wrong[direction].queries


def test_words_are_counted_by_what_they_speak_of(space, folder):
    found = localise(space, folder, show=False)
    words = [word for truth in read_truth(folder) if truth.split == "test" for c in truth.captions for word in c.words]
    for gallery, seen in (("image", "boxes"), ("audio", "times")):
        rows = {r.about: r.queries for r in found if (r.query, r.gallery) == ("text", gallery)}
        assert rows.pop("all") == sum(bool(getattr(word, seen)) for word in words)
        for factor, queries in rows.items():
            assert queries == sum(word.factor == factor for word in words)
    for row in found:
        for share in (row.hit, row.hit_chance, row.mass, row.mass_chance):
            assert 0 <= share <= 1


def test_an_unknown_split_is_an_error(space, folder):
    with pytest.raises(UsageError, match="'nowhere'"):
        localise(space, folder, "nowhere", show=False)


def test_shares_of_a_cosine_sum_to_the_score(space, folder):
    """Mean pooling and linear heads: every two parts' share is exact."""
    a, b = Source("image", folder / "images/000000.png"), Source("text", "Two red bells ring.")
    found = heat(space, b, a)
    assert (found.a, found.b) == (a, b)
    assert found.values.sum().item() == pytest.approx(found.score, abs=1e-5)
    assert found.values.shape == (len(found.a_places), len(found.b_places))
    assert found.score == pytest.approx(float(space.scores(space.embed_one(b), "text", space.embed_one(a), "image")))
    start, end = map(int, found.b_places[0])
    assert str(b.content)[start:end] == "Two"


def test_heat_needs_two_modalities(space):
    with pytest.raises(UsageError, match="both are text"):
        heat(space, Source("text", "a"), Source("text", "b"))
