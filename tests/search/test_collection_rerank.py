"""Similarities that read parts and learned metrics: the shortlist is re-ranked by the similarity of the space."""

import pytest
import torch

from tests.conftest import TINY_OVERRIDES
from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.scan import items_from_rows
from triptych.space import Space

pytestmark = pytest.mark.slow

SIMILARITIES = {
    "matchmap": ["space.similarity.name=matchmap"],
    "word_region": ["space.similarity.name=word_region"],
    "mahalanobis": [
        "space.similarity.name=mahalanobis",
        "space.similarity.embed_dim=32",
        "space.similarity.metric=diagonal",
    ],
    "dot": ["space.similarity.name=dot", "space.geometry=free"],
}


@pytest.mark.parametrize("name", SIMILARITIES)
def test_hits_are_sorted_by_the_similarity_of_the_space(name, synthetic_manifest, tmp_path):
    rows = manifest.read(synthetic_manifest).rows[:20]
    torch.manual_seed(0)
    space = Space(Recipe.load("trimodal", [*TINY_OVERRIDES, *SIMILARITIES[name]]))
    space.encoder("text").fit_vocabulary([Source("text", text) for row in rows for text in row.texts])
    save(space.eval(), tmp_path / "space.safetensors")
    collection = Collection(tmp_path / "collection", tmp_path / "space.safetensors")
    collection.index(items_from_rows(rows, collection.space), synthetic_manifest, show_progress=False)
    collection = Collection(tmp_path / "collection")
    space = load(tmp_path / "space.safetensors")
    audio = next(e for e in collection.list_items() if e.source.modality == "audio")
    for query in (Source("text", rows[3].texts[0]), audio.source):
        query_features = space.embed_one(query)
        images = [e for e in collection.list_items() if e.source.modality == "image"]
        scores = {}
        for entry in images:
            features = space.embed_one(entry.source)
            scores[entry.id] = space.scores(query_features, features).item()
        hits = collection.search(query, ["image"], k=20, fold_duplicates=False)
        assert len(hits) == 20
        # Parts are stored in half precision.
        tolerance = 2e-3 * max(map(abs, scores.values()))
        for hit in hits:
            assert hit.score == pytest.approx(scores[hit.id], abs=tolerance)
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert all(0 <= hit.relevance <= 1 for hit in hits)
    by_id = collection.search_similar(audio.id, ["image"], k=20)
    by_file = collection.search(audio.source, ["image"], k=20)
    assert [h.score for h in by_id] == pytest.approx([h.score for h in by_file], abs=tolerance)
