"""Lists of like keys: what they find beside an exact scan, with filters, deletions and new items."""

import numpy as np
import pytest

from triptych.search import gallery as galleries
from triptych.search.gallery import Gallery
from triptych.search.index import GOAL, Lists, Mask, nearest


def made(count, seed=0, width=32):
    """Keys in loose clusters, all of length 1."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, width))
    keys = centres[rng.integers(0, 40, count)] + 0.5 * rng.standard_normal((count, width))
    return (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    keys = made(6000)
    return Lists.build(tmp_path_factory.mktemp("lists") / "image", "me", np.arange(6000) * 2, keys, made(100, 1))


def recall(found, exact):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, exact, strict=True)])


def test_new_queries_find_what_an_exact_scan_finds(lists):
    queries = made(100, 2)
    found = [lists.numbers[lists.nearest(q, 10)[0]] for q in queries]
    exact = [lists.numbers[nearest(q, lists.keys, 10)[0]] for q in queries]
    assert lists.share < 0.2, "else a scan would do"
    assert recall(found, exact) >= GOAL - 0.02
    for q in queries[:5]:
        places, scores = lists.nearest(q, 10)
        assert scores == pytest.approx(lists.keys[places] @ q, abs=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_every_key_is_kept_with_its_number(lists):
    keys = made(6000)
    assert np.array_equal(lists.keys[np.argsort(lists.numbers)], keys)
    assert lists.ends[-1] == 6000


@pytest.mark.parametrize("share", [0.5, 0.05, 0.001])
def test_filters_find_what_an_exact_scan_of_the_allowed_finds(lists, share):
    allowed = np.random.default_rng(3).random(6000) < share
    mask, places = Mask(lists, allowed), np.flatnonzero(allowed)
    queries = made(50, 4)
    found = [lists.nearest(q, 10, mask)[0] for q in queries]
    exact = [places[nearest(q, lists.keys[places], 10)[0]] for q in queries]
    assert all(allowed[some].all() for some in found)
    assert recall(found, exact) >= GOAL - 0.03


def test_lists_of_another_table_or_not_whole_are_not_read(lists, tmp_path):
    folder = tmp_path / "image"
    Lists.build(folder, "me", np.arange(500), made(500), made(20, 1))
    assert Lists.open(folder, "me") is not None
    assert Lists.open(folder, "another") is None
    whole = (folder / "keys.npy").read_bytes()
    (folder / "keys.npy").write_bytes(whole[: len(whole) // 2])
    assert Lists.open(folder, "me") is None
    assert Lists.open(tmp_path / "nothing", "me") is None


def test_keys_of_many_lengths_are_not_sorted():
    keys = made(1000)
    assert Lists.fits(keys)
    assert not Lists.fits(keys * np.linspace(1, 2, 1000, dtype=np.float32)[:, None])


def test_a_gallery_joins_lists_with_what_came_later_and_leaves_out_what_is_gone(lists):
    later = made(300, 5)
    alive = np.random.default_rng(6).random(6000) < 0.9
    gallery = Gallery(lists, alive, np.arange(300) * 2 + 1, later)
    assert len(gallery) == alive.sum() + 300
    numbers = np.concatenate([lists.numbers[alive], gallery.numbers])
    keys = np.concatenate([lists.keys[alive], later])
    queries = made(50, 7)
    found = [gallery.nearest(q, 10)[0] for q in queries]
    exact = [numbers[nearest(q, keys, 10)[0]] for q in queries]
    assert recall(found, exact) >= GOAL - 0.02
    odd = numbers[numbers % 2 == 1]
    found = [gallery.nearest(q, 10, "odd", np.sort(odd))[0] for q in queries]
    assert found == pytest.approx(np.array([gallery.numbers[nearest(q, later, 10)[0]] for q in queries]))
    some, some_keys = gallery.sample(50)
    place = {int(n): key for n, key in zip(numbers, keys, strict=True)}
    assert len(set(some.tolist())) == 50
    assert all(np.array_equal(place[int(n)], key) for n, key in zip(some, some_keys, strict=True))


def test_a_large_collection_sorts_itself_into_lists_and_finds_the_same(collection, files, monkeypatch):
    from triptych.contracts import Source
    from triptych.search.collection import Collection
    from triptych.search.items import items_in

    before = collection.search(Source("text", "a bell"), k=11, fold=False)
    monkeypatch.setattr(galleries, "PAYS", 4)
    again = Collection.open(collection.folder)
    again.index(items_in(files, again.space), files, show=False)
    assert (collection.folder / "lists" / "image").is_dir()
    reader = Collection.open(collection.folder)
    hits = reader.search(Source("text", "a bell"), k=11, fold=False)
    assert {h.id for h in hits} == {h.id for h in before}
    assert sorted(h.score for h in hits) == pytest.approx(sorted(h.score for h in before), abs=1e-6)
    gone = next((files / "images").iterdir())
    gone.unlink()
    again.index(items_in(files, again.space), files, show=False)
    reader._looked = 0.0
    assert str(gone.resolve()) not in {h.item for h in reader.search(Source("text", "a bell"), k=11, fold=False)}
