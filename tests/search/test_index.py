"""The IVF index against an exact scan, with filters, deletions and new items."""

import numpy as np
import pytest

from triptych.search import index as search_index
from triptych.search.index import TARGET_RECALL, Gallery, IVFIndex, IVFMask, search_exact


def make_clustered_keys(count, seed=0, dim=32):
    """Return unit vectors in loose clusters."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((40, dim))
    keys = centres[rng.integers(0, 40, count)] + 0.5 * rng.standard_normal((count, dim))
    return (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def ivf_index(tmp_path_factory):
    keys = make_clustered_keys(6000)
    return IVFIndex.build(
        tmp_path_factory.mktemp("ivf_index") / "image", "table", np.arange(6000) * 2, keys, make_clustered_keys(100, 1)
    )


def measure_recall(approximate, exact):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(approximate, exact, strict=True)])


def test_ivf_search_reaches_the_target_recall_on_new_queries(ivf_index):
    queries = make_clustered_keys(100, 2)
    approximate = [ivf_index.row_ids[ivf_index.search(q, 10)[0]] for q in queries]
    exact = [ivf_index.row_ids[search_exact(q, ivf_index.keys, 10)[0]] for q in queries]
    assert ivf_index.probe_fraction < 0.2, "an exact scan would be as fast"
    assert measure_recall(approximate, exact) >= TARGET_RECALL - 0.02
    for q in queries[:5]:
        positions, scores = ivf_index.search(q, 10)
        assert scores == pytest.approx(ivf_index.keys[positions] @ q, abs=1e-6)
        assert (np.diff(scores) <= 0).all()


def test_every_key_is_stored_with_its_row_id(ivf_index):
    keys = make_clustered_keys(6000)
    assert np.array_equal(ivf_index.keys[np.argsort(ivf_index.row_ids)], keys)
    assert ivf_index.list_ends[-1] == 6000


@pytest.mark.parametrize("fraction", [0.5, 0.05, 0.001])
def test_filtered_ivf_search_reaches_the_target_recall(ivf_index, fraction):
    allowed = np.random.default_rng(3).random(6000) < fraction
    mask, positions = IVFMask(ivf_index, allowed), np.flatnonzero(allowed)
    queries = make_clustered_keys(50, 4)
    approximate = [ivf_index.search(q, 10, mask)[0] for q in queries]
    exact = [positions[search_exact(q, ivf_index.keys[positions], 10)[0]] for q in queries]
    assert all(allowed[positions].all() for positions in approximate)
    assert measure_recall(approximate, exact) >= TARGET_RECALL - 0.03


def test_an_index_of_another_table_or_a_truncated_one_is_not_opened(ivf_index, tmp_path):
    folder = tmp_path / "image"
    IVFIndex.build(folder, "table", np.arange(500), make_clustered_keys(500), make_clustered_keys(20, 1))
    assert IVFIndex.open(folder, "table") is not None
    assert IVFIndex.open(folder, "another") is None
    content = (folder / "keys.npy").read_bytes()
    (folder / "keys.npy").write_bytes(content[: len(content) // 2])
    assert IVFIndex.open(folder, "table") is None
    assert IVFIndex.open(tmp_path / "nothing", "table") is None


def test_keys_of_different_norms_are_not_indexed():
    keys = make_clustered_keys(1000)
    assert IVFIndex.has_equal_norms(keys)
    assert not IVFIndex.has_equal_norms(keys * np.linspace(1, 2, 1000, dtype=np.float32)[:, None])


def test_a_gallery_searches_index_and_tail_without_deleted_items(ivf_index):
    tail_keys = make_clustered_keys(300, 5)
    live_mask = np.random.default_rng(6).random(6000) < 0.9
    gallery = Gallery(ivf_index, live_mask, np.arange(300) * 2 + 1, tail_keys)
    assert len(gallery) == live_mask.sum() + 300
    row_ids = np.concatenate([ivf_index.row_ids[live_mask], gallery.tail_row_ids])
    keys = np.concatenate([ivf_index.keys[live_mask], tail_keys])
    queries = make_clustered_keys(50, 7)
    approximate = [gallery.search(q, 10)[0] for q in queries]
    exact = [row_ids[search_exact(q, keys, 10)[0]] for q in queries]
    assert measure_recall(approximate, exact) >= TARGET_RECALL - 0.02
    odd = row_ids[row_ids % 2 == 1]
    approximate = [gallery.search(q, 10, gallery.make_mask(np.sort(odd)))[0] for q in queries]
    assert approximate == pytest.approx(
        np.array([gallery.tail_row_ids[search_exact(q, tail_keys, 10)[0]] for q in queries])
    )
    sampled, sampled_keys = gallery.sample(50)
    key_by_row_id = {int(n): key for n, key in zip(row_ids, keys, strict=True)}
    assert len(set(sampled.tolist())) == 50
    assert all(np.array_equal(key_by_row_id[int(n)], key) for n, key in zip(sampled, sampled_keys, strict=True))


def test_a_large_collection_builds_an_ivf_index_with_the_same_hits(collection, files, monkeypatch):
    from triptych.interfaces import Source
    from triptych.search.collection import Collection
    from triptych.search.scan import items_from_folder

    before = collection.search(Source("text", "a bell"), k=11, fold_duplicates=False)
    monkeypatch.setattr(search_index, "MIN_INDEXED_KEYS", 4)
    again = Collection(collection.folder)
    again.index(items_from_folder(files, again.space), files, show_progress=False)
    assert (collection.folder / "ivf" / "image").is_dir()
    reader = Collection(collection.folder)
    hits = reader.search(Source("text", "a bell"), k=11, fold_duplicates=False)
    assert {h.id for h in hits} == {h.id for h in before}
    assert sorted(h.score for h in hits) == pytest.approx(sorted(h.score for h in before), abs=1e-6)
    removed = next((files / "images").iterdir())
    removed.unlink()
    again.index(items_from_folder(files, again.space), files, show_progress=False)
    monkeypatch.setattr("triptych.search.collection.REFRESH_SECONDS", 0.0)
    assert str(removed.resolve()) not in {
        str(h.source.content) for h in reader.search(Source("text", "a bell"), k=11, fold_duplicates=False)
    }


@pytest.mark.parametrize("k", [1, 3, 50])
def test_search_exact_is_a_sorted_scan_with_ties_in_order(k):
    keys = np.random.default_rng(0).integers(-2, 3, (30, 2)).astype(np.float32)
    query = np.array([1.0, 0.5], np.float32)
    order, scores = search_exact(query, keys, k)
    expected = sorted(range(30), key=lambda i: (-float(keys[i] @ query), i))[:k]
    assert order.tolist() == expected
    assert scores.tolist() == [float(keys[i] @ query) for i in expected]
