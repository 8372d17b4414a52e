"""Films in a collection: their moments are found as pictures and as sound, with times."""

from pathlib import Path

import pytest

from tests.media.made import flash_film, save_film
from triptych.checkpoint import load, save
from triptych.contracts import Source
from triptych.search.collection import Collection
from triptych.search.items import items_in


def test_a_film_becomes_moments_of_both_kinds_and_each_is_found(run, tmp_path):
    space = load(run)
    space.encoder("audio").seconds = 1.5
    (tmp_path / "films").mkdir()
    save_film(tmp_path / "films" / "clip.mp4", seconds=4.0)
    save_film(tmp_path / "films" / "silent.mp4", seconds=1.0, sound=False)
    (tmp_path / "films" / "broken.mp4").write_bytes(b"not a film at all, but it is called one" * 50)
    items = list(items_in(tmp_path / "films", space))
    found = {(item.source.modality, str(item.source.content).rsplit("/", 1)[1]) for item in items}
    assert found == {("image", "clip.mp4"), ("audio", "clip.mp4"), ("image", "silent.mp4"), ("image", "broken.mp4")}
    times = [(i.source.start, i.source.end) for i in items if str(i.source.content).endswith("clip.mp4")]
    assert times[:3] == times[3:]
    assert [end for _, end in times[:2]] == [1.5, 3.0]
    save(space, tmp_path / "space.safetensors")
    collection = Collection.create(tmp_path / "collection", tmp_path / "space.safetensors")
    done = collection.index(items, tmp_path / "films", show=False)
    assert [str(source.content).rsplit("/", 1)[1] for source in done.failures] == ["broken.mp4"]
    assert done.added == 7
    for item in items:
        if item.source not in done.failures:
            first = collection.search(item.source, [item.source.modality], k=1, include_query=True)[0]
            assert (first.item, first.start, first.end) == (
                str(item.source.content),
                item.source.start,
                item.source.end,
            )


@pytest.mark.parametrize("late_stream", [True, False])
def test_one_damaged_film_does_not_end_the_indexing(run, tmp_path, late_stream):
    films = tmp_path / "films"
    films.mkdir()
    (films / "a.flv").write_bytes(flash_film(late_stream))
    save_film(films / "b.mp4", seconds=1.0)
    collection = Collection.create(tmp_path / "collection", run)
    done = collection.index(items_in(films, collection.space), films, show=False)
    assert {Path(source.content).name for source in done.failures} == {"a.flv"}
    assert all(str(films / "a.flv") in why for why in done.failures.values())
    assert {hit.item for hit in collection.search(Source("text", "a bell"), k=10)} >= {str(films / "b.mp4")}
