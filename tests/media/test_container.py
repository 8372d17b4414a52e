"""Containers: durations, cover art, and no access to other files."""

import av
import pytest
from av.stream import Disposition
from PIL import Image

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import audio, video


def test_a_playlist_opens_no_other_file(tmp_path):
    media_files.save_audio(tmp_path / "secret.m2ts", media_files.noise(1.0, 16_000), 16_000)
    listed = tmp_path / "list.m4a"
    listed.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.m2ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(MediaError, match="cannot be read as audio"):
        audio.read(listed, 16_000)


def test_names_that_look_like_urls_are_files(tmp_path):
    path = media_files.save_audio(tmp_path / "whole.m4a", media_files.noise(1.0, 16_000), 16_000)
    odd = path.rename(tmp_path / "concat:x%20y #ü.m4a")
    assert len(audio.read(odd, 16_000)) == pytest.approx(16_000, abs=1100)


def test_mp3_without_frame_count(tmp_path):
    samples = media_files.noise(5.0, 44_100)
    path = media_files.save_audio(tmp_path / "plain.mp3", samples, 44_100, "libmp3lame", options={"write_xing": "0"})
    assert audio.read_duration(path) == pytest.approx(5.0, abs=0.1)
    assert media_files.best_correlation(audio.read(path, 44_100), samples)[0] > 0.97
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert audio.read_duration(path) == pytest.approx(2.5, abs=0.1)
    assert len(audio.read(path, 44_100)) == pytest.approx(2.5 * 44_100, abs=4_410)


def test_cover_art_is_not_a_video_stream(tmp_path):
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w", format="mp4") as file:
        write_samples = media_files.add_audio_stream(file, "aac", 48_000, 1)
        cover = file.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        write_samples(media_files.noise(2.0, 48_000))
        file.mux(cover.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48))).reformat(format="yuvj420p")))
        file.mux(cover.encode(None))
        write_samples(None)
    assert (video.read_info(path).has_video, video.read_info(path).has_audio) == (False, True)
    assert len(audio.read(path, 16_000)) == pytest.approx(32_000, abs=400)
