"""A pretrained joint model is a space: it indexes and searches without training."""

import shutil

import numpy as np
import pytest
from PIL import Image

from triptych.checkpoint import compute_fingerprint, load, resolve_path
from triptych.errors import CheckpointError, CollectionError
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
    with pytest.raises(CheckpointError, match="'bert', which has one modality or no embeddings"):
        load(tiny_models.bert(tmp_path / "bert"))


@pytest.mark.parametrize("name", ["hf:{}?truncate_dim=4", "st:{}"])
@pytest.mark.filterwarnings("ignore:.*does not declare to which dimensions")
def test_a_collection_remembers_library_and_settings(name, tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(tmp_path)
    tiny_models.clip(tmp_path / "model")
    (tmp_path / "files").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "files" / "red.png")
    collection = Collection(tmp_path / "collection", name.format("model"))
    collection.index(items_from_folder(tmp_path / "files", collection.space), tmp_path / "files", show_progress=False)
    monkeypatch.chdir("/")
    again = Collection(tmp_path / "collection")
    assert again.space.recipe.space.embed_dim == (4 if "?" in name else 8)
    assert again.space.recipe.space.encoders == collection.space.recipe.space.encoders
    assert again.search(Source("text", "a dog"), ["image"], k=1)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(
        CollectionError, match=r"the space .* does not exist .*; if it was moved, give its new path with --space RUN"
    ):
        Collection(tmp_path / "collection")


@pytest.mark.slow
def test_search_uses_the_prompt_for_queries_and_the_index_the_prompt_for_documents(tmp_path):
    pytest.importorskip("sentence_transformers")
    from tests.encoders.test_sentence_transformer import PROMPTS, TEXTS, load_library, save_text_model

    folder = save_text_model(tmp_path, prompts=PROMPTS)
    model, query = load_library(folder), "a bird sings"
    (tmp_path / "files").mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / "files" / f"{i}.txt").write_text(text)
    (tmp_path / "files" / "empty.txt").write_bytes(b"\xff\xfe\x00")
    collection = Collection(tmp_path / "collection", f"st:{folder}")
    result = collection.index(
        items_from_folder(tmp_path / "files", collection.space), tmp_path / "files", show_progress=False
    )
    assert {source.path.name for source in result.failures} == {"empty.txt"}
    assert {source.prompt_name for source in result.failures} == {None}
    expected = model.encode_document(TEXTS) @ model.encode_query(query)
    hits = collection.search(query, k=len(TEXTS), fold_duplicates=False)
    scores = {int(hit.source.path.stem): hit.score for hit in hits}
    assert [scores[i] for i in range(len(TEXTS))] == pytest.approx(expected.tolist(), abs=1e-4)
    assert not np.allclose(expected, model.encode(TEXTS) @ model.encode(query), atol=1e-3)
    assert np.allclose(collection.space.encode_query(query), model.encode_query(query), atol=1e-5)
    assert np.allclose(collection.space.encode_document(TEXTS), model.encode_document(TEXTS), atol=1e-5)
