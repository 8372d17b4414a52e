"""Videos: frames at given times, rotation, and segments with matching image and audio."""

from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from tests.media import media_files
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.encoders.image_cnn import ImageCNN
from triptych.errors import InputError, MediaError
from triptych.interfaces import Source
from triptych.media import audio, image, limits, video

pytestmark = pytest.mark.slow

TIMES = [0.0, 3.95, 0.05, 1.0, 1.55, 3.33, 0.7, 1.0, 2.2]


@pytest.fixture(scope="module")
def video_path(tmp_path_factory):
    """Four seconds at ten frames per second."""
    return media_files.save_video(tmp_path_factory.mktemp("videos") / "video.mp4")


@pytest.mark.parametrize("extension", media_files.VIDEO_CODECS)
def test_read_frames_returns_the_frame_at_each_time(extension, tmp_path):
    path = media_files.save_video(tmp_path / f"video.{extension}")
    numbers = [media_files.frame_number(frame) for frame in video.read_frames(path, TIMES)]
    assert numbers == pytest.approx(
        [int(time * media_files.FPS + 1e-6) for time in TIMES], abs=1 if extension == "avi" else 0
    )
    assert [frame.size for frame in video.read_frames(path, [0.0, 2.0])] == [(64, 48)] * 2
    info = video.read_info(path)
    assert (info.width, info.height, info.frame_rate) == (64, 48, 10.0)
    assert (info.has_video, info.has_audio) == (True, True)
    assert info.duration == pytest.approx(4.0, abs=0.15)


@pytest.mark.parametrize("extension", media_files.VIDEO_CODECS)
def test_audio_is_in_sync_with_the_frames(extension, tmp_path):
    path = media_files.save_video(tmp_path / f"video.{extension}")
    whole = media_files.noise(4.0, 48_000)
    for start, end in [(0.0, 4.0), (1.0, 2.5), (2.2, 3.3)]:
        expected = whole[round(start * 48_000) : round(end * 48_000)]
        correlation, shift = media_files.best_correlation(audio.read(path, 48_000, start, end), expected)
        assert correlation > 0.97
        assert abs(shift) <= (1300 if extension == "avi" else 0)  # avi does not state the encoder's delay


def test_distant_frames_are_reached_by_keyframes(tmp_path, monkeypatch):
    """Distant frames are correct, and need a seek instead of decoding everything before."""
    path = media_files.save_video(tmp_path / "long.mp4", seconds=60.0)
    decoded = []
    monkeypatch.setattr(
        video, "_decode_frames", lambda *a, real=video._decode_frames: (decoded.append(f) or f for f in real(*a))
    )
    images = video.read_frames(path, [57.33, 2.2, 30.05])
    assert [media_files.frame_number(frame) for frame in images] == [573 % 50, 22, 300 % 50]
    assert len(decoded) < 120


def test_frames_are_rotated_as_the_header_says(video_path):
    """By 90° clockwise: the red left half is at the top."""
    rotated = media_files.save_rotated_copy(video_path)
    frame = video.read_frames(rotated, [3.0])[0]
    info = video.read_info(rotated)
    assert frame.size == (info.width, info.height) == (48, 64)
    pixels = np.asarray(frame).astype(int)
    assert pixels[:20, :, 1].mean() < 20 < 100 < pixels[:20, :, 0].mean()
    assert pixels[44:, :, 1].mean() > 100


def test_non_square_pixels_are_made_square(tmp_path):
    path = tmp_path / "wide.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2)
        for _ in range(5):
            file.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48)))))
        file.mux(stream.encode(None))
    assert video.read_frames(path, [0.1])[0].size == (128, 48)


def test_a_video_can_be_read_as_an_image(video_path, tmp_path):
    assert image.read_pixels(video_path, 16, time=1.0).shape == (16, 16, 3)
    assert media_files.frame_number(image.load(video_path, time=1.0)) == 10
    assert media_files.frame_number(image.load(video_path)) == 20  # the middle
    assert (
        media_files.frame_number(image.load(video_path.rename(tmp_path / "video.jpg").rename(video_path), time=0.5))
        == 5
    )


def test_segments_pair_a_frame_with_its_audio(video_path):
    segments = video.split_into_segments(video_path, length=1.5, hop=1.0)
    assert [(image_source.start, image_source.end) for image_source, _ in segments] == [
        (0, 1.5),
        (1, 2.5),
        (2, 3.5),
        (2.5, 4),
    ]
    for frame, audio_source in segments:
        assert (frame.modality, audio_source.modality) == ("image", "audio")
        assert (frame.content, frame.start, frame.end) == (
            audio_source.content,
            audio_source.start,
            audio_source.end,
        )
    frame, audio_source = segments[1]
    assert media_files.frame_number(image.load(video_path, time=image.frame_time(frame))) == 17  # 1.75 s
    samples = audio.read(video_path, 48_000, audio_source.start, audio_source.end)
    assert media_files.best_correlation(samples, media_files.noise(4.0, 48_000)[48_000:120_000]) == (
        pytest.approx(1.0, abs=0.03),
        0,
    )
    with pytest.raises(InputError, match="must be above 0"):
        video.split_into_segments(video_path, length=0.0, hop=1.0)


def test_frame_time_is_the_middle_of_the_segment(video_path):
    middles = {(None, None): None, (1.0, 2.0): 1.5, (3.0, None): 3.5, (None, 1.0): 0.5, (3.0, 60.0): 3.5}
    for (start, end), middle in middles.items():
        assert image.frame_time(Source("image", video_path, start, end)) == pytest.approx(middle, abs=0.02)
    with pytest.raises(MediaError, match=r"no frames from 5 s on; the video is 4(\.\d+)? s long"):
        image.frame_time(Source("image", video_path, 5.0, 6.0))


def test_a_video_row_uses_its_segment_for_image_and_audio(video_path, tmp_path):
    still = tmp_path / "still.png"
    Image.new("RGB", (8, 8)).save(still)
    row = Row("a", None, None, video_path, (), "a", None, None, 2.0, 3.0, 1)
    assert source_of(row, "image") == Source("image", video_path, 2.0, 3.0)
    assert source_of(row, "audio") == Source("audio", video_path, 2.0, 3.0)
    row_with_image = Row("b", None, still, video_path, (), "b", None, None, 2.0, 3.0, 2)
    assert source_of(row_with_image, "image") == Source("image", still)
    prepared = ImageCNN(feature_dim=32, image_size=16).prepare(source_of(row, "image"))
    assert np.array_equal(prepared, image.read_pixels(video_path, 16, time=2.5))


def test_errors_for_missing_streams(video_path, tmp_path, monkeypatch):
    silent = media_files.save_video(tmp_path / "silent.mp4", seconds=1.0, with_audio=False)
    song = media_files.save_audio(tmp_path / "song.m4a", media_files.noise(1.0, 48_000), 48_000)
    assert video.read_info(song).has_video is False
    cases = {
        "silent.mp4: has no audio stream; segments need both": lambda: video.split_into_segments(silent, 1.0, 1.0),
        "song.m4a: has no video stream; segments need both": lambda: video.split_into_segments(song, 1.0, 1.0),
        "song.m4a: cannot be read as an image; give png": lambda: image.load(song),
        "song.m4a: has no video stream": lambda: video.read_frames(song, [0.0]),
        r"video.mp4: no frame at 9 s; the video ends at 4.00 s": lambda: image.load(video_path, time=9.0),
    }
    for message, call in cases.items():
        with pytest.raises(MediaError, match=message):
            call()
    monkeypatch.setattr(limits, "MAX_PIXELS", 1000)
    with pytest.raises(MediaError, match=r"video.mp4: 64 × 48 pixels; at most"):
        image.load(video_path)
    monkeypatch.setattr(limits, "MAX_PIXELS", 1_000_000)
    monkeypatch.setattr(limits, "MAX_CPU_SECONDS", -1.0)
    with pytest.raises(MediaError, match=r"video.mp4: not decoded within"):
        image.load(video_path)


def test_a_truncated_video_gives_its_remaining_frames(tmp_path):
    path = media_files.save_video(tmp_path / "video.mkv", seconds=20.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])
    assert media_files.frame_number(video.read_frames(path, [1.0])[0]) == 10
    with pytest.raises(MediaError, match="no frame at 10"):
        image.load(path)
    with pytest.raises(MediaError, match="truncated"):
        audio.read(path, 16_000)
    assert len(audio.read(path, 16_000, 1.0, 2.0)) == 16_000


def test_info_of_a_video_that_cannot_seek(tmp_path):
    """FLV without an index."""
    path = tmp_path / "video.flv"
    path.write_bytes(media_files.make_flv())
    info = video.read_info(path)
    assert (info.width, info.height, info.has_video, info.has_audio) == (32, 32, True, True)
    assert info.duration == pytest.approx(0.5, abs=0.1)
