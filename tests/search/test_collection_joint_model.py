"""A pretrained joint model is a space: it indexes and searches without training."""

import numpy as np
import pytest
from PIL import Image

from triptych.checkpoint import compute_fingerprint, load, resolve_path
from triptych.errors import CheckpointError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder

pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
from tests.encoders import tiny_models


def test_a_joint_model_indexes_and_searches_without_training(tmp_path):
    model = tiny_models.clip(tmp_path / "model")
    space = load(model)
    assert space.modalities == ("image", "text")
    assert not [p for p in space.parameters() if p.requires_grad]
    (tmp_path / "files").mkdir()
    rng = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(tmp_path / "files" / f"{i}.png")
    collection = Collection(tmp_path / "collection", model)
    assert (
        collection.index(items_from_folder(tmp_path / "files", space), tmp_path / "files", show_progress=False).added
        == 4
    )
    again = Collection(tmp_path / "collection")
    hits = again.search(Source("image", tmp_path / "files" / "2.png"), ["image"], k=4, include_query=True)
    assert str(hits[0].source.content).endswith("2.png")
    assert hits[0].score == pytest.approx(1.0, abs=1e-5)
    assert len(again.search(Source("text", "a dog"), ["image"], k=4)) == 4


def test_another_model_has_another_fingerprint(tmp_path):
    one, other = tiny_models.clip(tmp_path / "one"), tiny_models.siglip(tmp_path / "other")
    assert resolve_path(one) == one
    assert compute_fingerprint(one) == compute_fingerprint(one) != compute_fingerprint(other)
    with pytest.raises(CheckpointError, match="no joint model"):
        load(tiny_models.bert(tmp_path / "bert"))
