"""Videos are indexed as image and audio segments."""

import pytest

from tests.media.media_files import make_flv, save_video
from triptych.checkpoint import load, save
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder


def test_a_video_is_indexed_as_image_and_audio_segments(run_dir, tmp_path):
    space = load(run_dir)
    space.encoder("audio").max_seconds = 1.5
    (tmp_path / "videos").mkdir()
    save_video(tmp_path / "videos" / "clip.mp4", seconds=4.0)
    save_video(tmp_path / "videos" / "silent.mp4", seconds=1.0, with_audio=False)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"not a video" * 50)
    items = list(items_from_folder(tmp_path / "videos", space))
    names = {(item.source.modality, str(item.source.content).rsplit("/", 1)[1]) for item in items}
    assert names == {("image", "clip.mp4"), ("audio", "clip.mp4"), ("image", "silent.mp4"), ("image", "broken.mp4")}
    times = [(i.source.start, i.source.end) for i in items if str(i.source.content).endswith("clip.mp4")]
    assert times[:3] == times[3:]
    assert [end for _, end in times[:2]] == [1.5, 3.0]
    save(space, tmp_path / "space.safetensors")
    collection = Collection(tmp_path / "collection", tmp_path / "space.safetensors")
    result = collection.index(items, tmp_path / "videos", show_progress=False)
    assert [str(source.content).rsplit("/", 1)[1] for source in result.failures] == ["broken.mp4"]
    assert result.added == 7
    for item in items:
        if item.source not in result.failures:
            first = collection.search(item.source, [item.source.modality], k=1, include_query=True)[0]
            assert (str(first.source.content), first.source.start, first.source.end) == (
                str(item.source.content),
                item.source.start,
                item.source.end,
            )


@pytest.mark.parametrize("late_stream", [True, False])
def test_a_damaged_video_does_not_stop_indexing(run_dir, tmp_path, late_stream):
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "a.flv").write_bytes(make_flv(late_stream))
    save_video(videos / "b.mp4", seconds=1.0)
    collection = Collection(tmp_path / "collection", run_dir)
    result = collection.index(items_from_folder(videos, collection.space), videos, show_progress=False)
    assert {source.path.name for source in result.failures} == {"a.flv"}
    assert all(str(videos / "a.flv") in message for message in result.failures.values())
    assert {str(hit.source.content) for hit in collection.search(Source("text", "a bell"), k=10)} >= {
        str(videos / "b.mp4")
    }
