"""Similarities that read parts, and learned metrics: the shortlist is put in order by the space's own score."""

import pytest
import torch

from tests.conftest import QUICK
from triptych.checkpoint import load, save
from triptych.contracts import Source
from triptych.data import manifest
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.items import items_of
from triptych.space import Space

pytestmark = pytest.mark.slow

SIMILARITIES = {
    "matchmap": ["space.similarity.name=matchmap"],
    "word_region": ["space.similarity.name=word_region"],
    "mahalanobis": [
        "space.similarity.name=mahalanobis",
        "space.similarity.width=32",
        "space.similarity.metric=diagonal",
    ],
    "dot": ["space.similarity.name=dot", "space.geometry=free"],
}


@pytest.mark.parametrize("name", SIMILARITIES)
def test_hits_are_in_the_order_of_the_spaces_own_scores(name, world, tmp_path):
    rows = manifest.read(world).rows[:20]
    torch.manual_seed(0)
    space = Space(Recipe.load("trimodal", [*QUICK, *SIMILARITIES[name]]))
    space.encoder("text").learn([Source("text", text) for row in rows for text in row.texts])
    save(space.eval(), tmp_path / "space.safetensors")
    collection = Collection.create(tmp_path / "collection", tmp_path / "space.safetensors")
    collection.index(items_of(rows, collection.space), world, show=False)
    collection = Collection.open(tmp_path / "collection")
    space = load(tmp_path / "space.safetensors")
    sound = next(e for e in collection.entries() if e.item.source.modality == "audio")
    for query in (Source("text", rows[3].texts[0]), sound.item.source):
        asked = space.embed_one(query)
        images = [e for e in collection.entries() if e.item.source.modality == "image"]
        scores = {}
        for entry in images:
            features = space.embed_one(entry.item.source)
            scores[entry.id] = space.scores(asked, query.modality, features, "image").item()
        hits = collection.search(query, ["image"], k=20, fold=False)
        assert len(hits) == 20
        # Parts are kept in half precision.
        tolerance = 2e-3 * max(map(abs, scores.values()))
        for hit in hits:
            assert hit.score == pytest.approx(scores[hit.id], abs=tolerance)
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert all(0 <= hit.relevance <= 1 for hit in hits)
    by_id = collection.similar(sound.id, ["image"], k=20)
    by_file = collection.search(sound.item.source, ["image"], k=20)
    assert [h.score for h in by_id] == pytest.approx([h.score for h in by_file], abs=tolerance)
