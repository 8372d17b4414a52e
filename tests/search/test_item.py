"""The definition of an item: table, rows, hits and HTTP responses derive from its fields."""

import json
import sys
import types
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from triptych.app.server.items import make_hit_responses, make_item_response
from triptych.app.server.schemas import HitResponse, ItemFields, ItemResponse
from triptych.interfaces import Source, features_from_embeddings
from triptych.search import item as item_module
from triptych.search.collection import Collection
from triptych.search.item import (
    METADATA_COLUMNS,
    VECTOR_COLUMNS,
    Hit,
    Item,
    Provenance,
    item_from_row,
    make_metadata_table,
    make_schema,
    merge_items,
    to_arrow,
)
from triptych.search.roots import Roots
from triptych.similarities.cosine import Cosine

FULL_ITEM = Item(
    Source("audio", Path("/recordings/it's raining.wav"), 1.5, 2.0),
    captions=("rain", 'a "tin" roof'),
    columns={"split": ("test",), "tag": ("a=b", "c")},
    duration=0.5,
    modified_time=1e9,
    content_hash="abc",
    row_id=7,
    provenance=(Provenance("recordings", ("rain",), ("split=test",)), Provenance("recordings/pairs.csv")),
    location="recordings/it's raining.wav",
)
ROOTS = Roots({"recordings": Path("/recordings"), "images": Path("/images"), "notes": Path("/notes")})
ITEMS = {
    "segment": FULL_ITEM,
    "file": Item(Source("image", Path("/images/a.png")), location="images/a.png"),
    "text": Item(Source("text", "two red bells")),
    "text file": Item(Source("text", Path("/notes/a.txt")), excerpt="two red", location="notes/a.txt"),
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_a_row_is_converted_back_to_the_same_item(item):
    (row,) = make_metadata_table([item]).to_pylist()
    assert item_from_row(row, ROOTS) == item
    assert (row["id"], row["origins"]) == (item.id, item.origins)


def test_every_field_is_a_column():
    names = {field.name for field in fields(Item)} - {"source", "excerpt", "location"}
    assert names | {"id", "modality", "file", "text", "start", "end", "origins", "metadata_hash"} == {*METADATA_COLUMNS}
    assert make_schema(3).names == [*METADATA_COLUMNS, *VECTOR_COLUMNS]
    table = to_arrow([FULL_ITEM], features_from_embeddings(torch.randn(1, 3)), Cosine())
    assert table.cast(make_schema(3)).num_rows == 1


def test_hits_and_responses_have_the_public_fields_of_the_item():
    hit = Hit(FULL_ITEM, 0.5, 0.25, (0.5,), ("copy",))
    assert (hit.id, hit.source) == (FULL_ITEM.id, FULL_ITEM.source)
    record = json.loads(json.dumps(hit.to_dict()))
    assert record == {
        "id": FULL_ITEM.id,
        "modality": "audio",
        "file": "/recordings/it's raining.wav",
        "text": None,
        "start": 1.5,
        "end": 2.0,
        "captions": ["rain", 'a "tin" roof'],
        "columns": {"split": ["test"], "tag": ["a=b", "c"]},
        "duration": 0.5,
        "modified_time": 1e9,
        "score": 0.5,
        "relevance": 0.25,
        "part_scores": [0.5],
        "duplicates": ["copy"],
    }
    response, (hit_response,) = make_item_response(FULL_ITEM), make_hit_responses([hit])
    for name in ItemFields.model_fields.keys() & record.keys():
        assert getattr(response, name) == getattr(hit_response, name) == record[name]
    hit_fields = {"score", "relevance", "part_scores", "duplicates"}
    assert set(HitResponse.model_fields) - set(ItemFields.model_fields) == hit_fields
    assert set(ItemResponse.model_fields) - set(ItemFields.model_fields) == {"siblings"}


def test_a_new_column_takes_one_edit_in_the_definition_and_one_in_the_response(monkeypatch):
    """The third edit is the code that sets the value. docs/architecture.md shows the three."""
    source = Path(item_module.__file__).read_text()
    first_field = "    duration: float | None = column_field(FLOAT)"
    assert source.count(first_field) == 1
    changed = types.ModuleType("changed_item")
    monkeypatch.setitem(sys.modules, "changed_item", changed)
    exec(source.replace(first_field, f"    title: str | None = column_field(STRING)\n{first_field}"), changed.__dict__)

    class TitledResponse(ItemFields):
        title: str | None

    item = changed.Item(FULL_ITEM.source, title="rain")
    (row,) = changed.make_metadata_table([item]).to_pylist()
    assert row["title"] == "rain"
    assert changed.item_from_row(row) == item
    assert changed.make_schema(2).field("title").type == "string"
    assert changed.Item(FULL_ITEM.source).metadata_hash != item.metadata_hash
    record = changed.Hit(item, 0.5).to_dict()
    assert record["title"] == "rain"
    assert TitledResponse(**record, media_kind="audio", name="", folder="").title == "rain"


def test_the_metadata_hash_covers_what_can_change_while_the_content_stays():
    unchanged = replace(FULL_ITEM, content_hash="other", row_id=9, excerpt="text")
    assert unchanged.metadata_hash == FULL_ITEM.metadata_hash
    for change in ({"captions": ()}, {"columns": {}}, {"duration": 1.0}, {"modified_time": None}, {"provenance": ()}):
        assert replace(FULL_ITEM, **change).metadata_hash != FULL_ITEM.metadata_hash


def test_an_item_has_the_metadata_of_all_its_origins():
    item = Item(FULL_ITEM.source, ("rain",), {"split": ("test",)})
    first, second = item.with_origin("/b"), replace(item, captions=("a roof",), columns={}).with_origin("/a")
    merged = first.with_provenance([*first.provenance, *second.provenance])
    assert merged.origins == ["/a", "/b"]
    assert merged.captions == ("a roof", "rain")
    assert merged.columns == {"split": ("test",)}
    assert merged.with_provenance(second.provenance).captions == ("a roof",)


def test_items_of_the_same_source_are_merged():
    a, b = (
        Item(FULL_ITEM.source, ("x", "y"), {"n": ("1",)}),
        Item(FULL_ITEM.source, ("y", "z"), {"n": ("2",), "m": ("3",)}),
    )
    assert merge_items([a, b]) == [Item(FULL_ITEM.source, ("x", "y", "z"), {"n": ("1", "2"), "m": ("3",)})]


def test_a_file_of_several_rows_is_one_item_with_all_captions(run_dir, files, tmp_path):
    image = next((files / "images").iterdir())
    items = [Item(Source("image", image), ("a bell",)), Item(Source("image", image), ("one bell", "a bell"))]
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(items, files, show_progress=False)
    assert [e.captions for e in collection.list_items()] == [("a bell", "one bell")]
    collection.index([Item(Source("image", image), ("renamed",))], files, show_progress=False)
    hits = Collection(tmp_path / "collection").search(Source("image", image), k=5, include_query=True)
    assert [hit.item.captions for hit in hits] == [("renamed",)]
