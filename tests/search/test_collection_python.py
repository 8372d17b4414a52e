"""Collections from Python: opened or created, files added, searched with plain inputs, converted to tables."""

import re

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import triptych
from triptych.errors import CheckpointError, CollectionError, InputError, UsageError
from triptych.interfaces import Source
from triptych.search.query import Query, StoredItem
from triptych.space import Space


@pytest.fixture(scope="module")
def space(run_dir):
    return triptych.load(run_dir)


@pytest.fixture
def media(space, files, tmp_path):
    collection = triptych.Collection(tmp_path / "media", space)
    collection.add(files, show_progress=False)
    return collection


def test_one_constructor_creates_and_opens(space, files, tmp_path, run_dir):
    created = triptych.Collection(tmp_path / "media", space)
    assert len(created) == 0
    assert created.search("a bell") == []
    result = created.add(files, show_progress=False)
    assert result.added == len(created) > 0
    for opened in (
        triptych.Collection(tmp_path / "media"),
        triptych.Collection(str(tmp_path / "media"), run_dir),
        triptych.Collection(tmp_path / "media", space),
    ):
        assert opened.search("a bell", k=5) == created.search("a bell", k=5)
        assert opened.add(files, show_progress=False).unchanged == len(created)


def test_queries_of_all_forms_give_the_hits_of_their_source(media, files):
    image, audio = sorted((files / "images").iterdir())[0], sorted((files / "audio").iterdir())[0]
    samples, rate = soundfile.read(audio, dtype="float32")
    pixels = Image.open(image)
    queries = [
        ("a red bell", Source("text", "a red bell")),
        ({"text": "a red bell"}, Source("text", "a red bell")),
        (str(image), Source("image", image)),
        (image, Source("image", image)),
    ]
    for query, source in queries:
        assert media.search(query, k=5) == media.search(source, k=5)
    for query, path in ((pixels, image), (np.asarray(pixels), image), ((samples, rate), audio)):
        scores = [hit.score for hit in media.search(query, k=5)]
        expected = [hit.score for hit in media.search(path, k=5, include_query=True)]
        assert scores == pytest.approx(expected, abs=2e-3), path  # a decoded array is not resampled by the same library


def test_a_string_is_never_an_item_id(media):
    item = media.list_items()[0]
    assert media.search(item.id, k=3) == media.search(Source("text", item.id), k=3)
    similar = media.search(Query.combine(StoredItem(item.id)), k=3)
    assert similar == media.search_similar(item.id, k=3)
    assert item.id not in {hit.id for hit in similar}


def test_a_collection_names_its_folder_size_and_space(media):
    assert re.fullmatch(r"Collection\('.*', items=\d+, space='.*'\)", repr(media))


@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_an_invalid_number_of_hits_raises(media, k):
    with pytest.raises(UsageError, match=f"k = {k}; give the maximum number of hits, an integer of at least 1"):
        media.search("a bell", k=k)


def test_combined_queries_weigh_negatives(media):
    query = Query.combine("a red bell", negatives=["a dog"])
    assert [(part.value, part.weight) for part in query.parts] == [
        (Source("text", "a red bell"), 1.0),
        (Source("text", "a dog"), -1.0),
    ]
    hit = media.search(query, "image", k=1)[0]
    texts = media.space.encode(["a red bell", "a dog"])
    scores = media.space.similarity(media.space.encode(hit.source), texts)[0]
    assert hit.part_scores == pytest.approx(scores.tolist(), abs=1e-4)


def test_hits_and_items_convert_to_tables(media):
    hits = media.search("a red bell", ["image", "audio"], k=4)
    frame = hits.to_pandas()
    assert frame["score"].tolist() == [hit.score for hit in hits]
    assert frame["file"].tolist() == [str(hit.source.content) for hit in hits]
    assert hits.to_arrow().to_pylist()[0]["relevance"] == hits[0].relevance
    assert hits.to_dicts() == [hit.to_dict() for hit in hits]
    assert triptych.Hits().to_arrow().schema == hits.to_arrow().schema
    table = media.to_pandas(with_vectors=True)
    assert sorted(table["id"]) == sorted(item.id for item in media.list_items())
    row = table.iloc[0]
    expected = media.space.encode(Source(row["modality"], media.load_item(row["id"]).source.path))
    assert np.allclose(row["vector"], expected, atol=1e-5)
    assert triptych.Collection(media.folder.parent / "new", media.space).to_arrow().num_rows == 0


def test_pages_of_items_follow_one_order(media, tmp_path):
    for name in ("a.png", "b.png"):  # later writes than the other items, but with paths that sort earlier
        Image.new("RGB", (32, 32), "red").save(tmp_path / name)
        media.add(tmp_path / name, show_progress=False)
    items = media.list_items()
    assert items == sorted(items, key=lambda item: item.identity)
    assert [item for offset in range(0, len(items), 2) for item in media.list_items(limit=2, offset=offset)] == items
    assert media.list_items(triptych.Filter(folder=tmp_path / "mine"), offset=len(items)) == []


def test_one_file_can_be_added_and_the_rest_stays(media, space, tmp_path):
    number = len(media)
    path = tmp_path / "new.png"
    Image.new("RGB", (32, 32), "red").save(path)
    assert media.add(path, show_progress=False).added == 1
    assert len(media) == number + 1
    assert media.search(path, "image", k=1, include_query=True)[0].source.path == path
    with pytest.raises(UsageError, match=r"gone\.png: not a regular file"):
        media.add(tmp_path / "gone.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="contains nothing that this space can embed"):
        media.add(tmp_path / "empty")


def test_bad_input_is_refused_with_one_clear_error(media, tmp_path, tiny_recipe):
    with pytest.raises(UsageError, match="modality 'sound' is unknown; known: audio, image, text"):
        media.search("a bell", "sound")
    with pytest.raises(InputError, match="int is not an input; give a text, a path, a PIL image or"):
        media.search(3)
    with pytest.raises(UsageError, match="empty query"):
        media.search(Query.combine())
    with pytest.raises(CollectionError, match="no collection here"):
        triptych.Collection(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no such run folder or space file"):
        triptych.Collection(tmp_path / "none", "runs/none")
    torch.manual_seed(0)
    with pytest.raises(CollectionError, match=r"the space is only in memory; write it with space\.save_pretrained"):
        triptych.Collection(tmp_path / "none", Space(tiny_recipe))
    Space(tiny_recipe).save_pretrained(tmp_path / "other")
    with pytest.raises(CollectionError, match="another space"):
        triptych.Collection(media.folder, tmp_path / "other")
    assert not (tmp_path / "none").exists()
