"""Films: the right frame at the right time, the right way up, and moments whose picture and sound belong together."""

from fractions import Fraction

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from tests.media import made
from triptych.contracts import Source
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.encoders.image_cnn import ImageCNN
from triptych.errors import InputError, MediaError
from triptych.media import audio, image, limits, video

pytestmark = pytest.mark.slow

TIMES = [0.0, 3.95, 0.05, 1.0, 1.55, 3.33, 0.7, 1.0, 2.2]


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Four seconds, ten frames a second."""
    return made.save_film(tmp_path_factory.mktemp("films") / "film.mp4")


@pytest.mark.parametrize("ending", made.FILMS)
def test_each_frame_is_the_one_shown_at_its_time(ending, tmp_path):
    path = made.save_film(tmp_path / f"film.{ending}")
    found = [made.number_of(picture) for picture in video.frames(path, TIMES)]
    assert found == pytest.approx([int(time * made.FPS + 1e-6) for time in TIMES], abs=1 if ending == "avi" else 0)
    assert [picture.size for picture in video.frames(path, [0.0, 2.0])] == [(64, 48)] * 2
    known = video.info(path)
    assert (known.width, known.height, known.rate) == (64, 48, 10.0)
    assert (known.has_pictures, known.has_sound) == (True, True)
    assert known.duration == pytest.approx(4.0, abs=0.15)


@pytest.mark.parametrize("ending", made.FILMS)
def test_the_soundtrack_is_where_the_pictures_are(ending, tmp_path):
    path = made.save_film(tmp_path / f"film.{ending}")
    whole = made.noise(4.0, 48_000)
    for start, end in [(0.0, 4.0), (1.0, 2.5), (2.2, 3.3)]:
        wanted = whole[round(start * 48_000) : round(end * 48_000)]
        correlation, shift = made.alike(audio.read(path, 48_000, start, end), wanted)
        assert correlation > 0.97
        assert abs(shift) <= (1300 if ending == "avi" else 0)  # an avi does not tell what its encoder put in front


def test_long_films_are_reached_by_keyframes(tmp_path, monkeypatch):
    """Far frames are right, and cost a jump instead of everything before them."""
    path = made.save_film(tmp_path / "long.mp4", seconds=60.0)
    decoded = []
    monkeypatch.setattr(video, "_decoded", lambda *a, real=video._decoded: (decoded.append(f) or f for f in real(*a)))
    found = video.frames(path, [57.33, 2.2, 30.05])
    assert [made.number_of(picture) for picture in found] == [573 % 50, 22, 300 % 50]
    assert len(decoded) < 120


def test_pictures_are_turned_as_the_film_says(film):
    """A quarter to the right: what was red on the left is at the top."""
    turned = made.turned(film)
    picture = video.frames(turned, [3.0])[0]
    known = video.info(turned)
    assert picture.size == (known.width, known.height) == (48, 64)
    pixels = np.asarray(picture).astype(int)
    assert pixels[:20, :, 1].mean() < 20 < 100 < pixels[:20, :, 0].mean()
    assert pixels[44:, :, 1].mean() > 100


def test_pixels_that_are_not_square_are_made_so(tmp_path):
    path = tmp_path / "wide.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2)
        for _ in range(5):
            file.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48)))))
        file.mux(stream.encode(None))
    assert video.frames(path, [0.1])[0].size == (128, 48)


def test_a_film_is_a_picture_too(film, tmp_path):
    assert image.read(film, 16, at=1.0).shape == (16, 16, 3)
    assert made.number_of(image.load(film, at=1.0)) == 10
    assert made.number_of(image.load(film)) == 20  # the middle
    assert made.number_of(image.load(film.rename(tmp_path / "film.jpg").rename(film), at=0.5)) == 5


def test_moments_are_pictures_with_their_sound(film):
    found = video.moments(film, length=1.5, hop=1.0)
    assert [(picture.start, picture.end) for picture, _ in found] == [(0, 1.5), (1, 2.5), (2, 3.5), (2.5, 4)]
    for picture, sound in found:
        assert (picture.modality, sound.modality) == ("image", "audio")
        assert (picture.content, picture.start, picture.end) == (sound.content, sound.start, sound.end)
    picture, sound = found[1]
    assert made.number_of(image.load(film, at=image.moment(picture))) == 17  # 1.75 s
    heard = audio.read(film, 48_000, sound.start, sound.end)
    assert made.alike(heard, made.noise(4.0, 48_000)[48_000:120_000]) == (pytest.approx(1.0, abs=0.03), 0)
    with pytest.raises(InputError, match="must be above 0"):
        video.moments(film, length=0.0, hop=1.0)


def test_the_moment_of_a_source_is_its_middle_within_the_film(film):
    middles = {(None, None): None, (1.0, 2.0): 1.5, (3.0, None): 3.5, (None, 1.0): 0.5, (3.0, 60.0): 3.5}
    for (start, end), middle in middles.items():
        assert image.moment(Source("image", film, start, end)) == pytest.approx(middle, abs=0.02)
    with pytest.raises(MediaError, match=r"no pictures from 5 s on; the film is 4(\.\d+)? s long"):
        image.moment(Source("image", film, 5.0, 6.0))


def test_a_row_with_a_film_gives_its_moment_to_picture_and_sound(film, tmp_path):
    still = tmp_path / "still.png"
    Image.new("RGB", (8, 8)).save(still)
    row = Row("a", None, None, film, (), "a", None, None, 2.0, 3.0, 1)
    assert source_of(row, "image") == Source("image", film, 2.0, 3.0)
    assert source_of(row, "audio") == Source("audio", film, 2.0, 3.0)
    beside = Row("b", None, still, film, (), "b", None, None, 2.0, 3.0, 2)
    assert source_of(beside, "image") == Source("image", still)
    prepared = ImageCNN(width=32, size=16).prepare(source_of(row, "image"))
    assert np.array_equal(prepared, image.read(film, 16, at=2.5))


def test_films_that_lack_something_say_so(film, tmp_path, monkeypatch):
    silent = made.save_film(tmp_path / "silent.mp4", seconds=1.0, sound=False)
    song = made.save_sound(tmp_path / "song.m4a", made.noise(1.0, 48_000), 48_000)
    assert video.info(song).has_pictures is False
    cases = {
        "silent.mp4: has no sound; moments need both": lambda: video.moments(silent, 1.0, 1.0),
        "song.m4a: has no pictures; moments need both": lambda: video.moments(song, 1.0, 1.0),
        "song.m4a: cannot be read as a picture; give png": lambda: image.load(song),
        "song.m4a: has no pictures in it": lambda: video.frames(song, [0.0]),
        r"film.mp4: no picture at 9 s; its pictures end at 4.00 s": lambda: image.load(film, at=9.0),
    }
    for message, work in cases.items():
        with pytest.raises(MediaError, match=message):
            work()
    monkeypatch.setattr(limits, "MOST_PIXELS", 1000)
    with pytest.raises(MediaError, match=r"film.mp4: 64 × 48 pixels; at most"):
        image.load(film)
    monkeypatch.setattr(limits, "MOST_PIXELS", 1_000_000)
    monkeypatch.setattr(limits, "MOST_DECODING", -1.0)
    with pytest.raises(MediaError, match=r"film.mp4: not decoded within"):
        image.load(film)


def test_a_film_that_is_cut_short_shows_only_what_is_there(tmp_path):
    path = made.save_film(tmp_path / "film.mkv", seconds=20.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])
    assert made.number_of(video.frames(path, [1.0])[0]) == 10
    with pytest.raises(MediaError, match="no picture at 10"):
        image.load(path)
    with pytest.raises(MediaError, match="cut short"):
        audio.read(path, 16_000)
    assert len(audio.read(path, 16_000, 1.0, 2.0)) == 16_000


def test_the_cover_of_a_song_is_not_its_picture(tmp_path):
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w", format="mp4") as file:
        sound = made.write_sound_into(file, "aac", 48_000, 1)
        cover = file.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        sound(made.noise(2.0, 48_000))
        file.mux(cover.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48))).reformat(format="yuvj420p")))
        file.mux(cover.encode(None))
        sound(None)
    assert (video.info(path).has_pictures, video.info(path).has_sound) == (False, True)
    assert len(audio.read(path, 16_000)) == pytest.approx(32_000, abs=400)


def test_a_film_that_cannot_be_wound_back_to_its_start_is_told_whole(tmp_path):
    """FLV without an index."""
    path = tmp_path / "film.flv"
    path.write_bytes(made.flash_film())
    found = video.info(path)
    assert (found.width, found.height, found.has_pictures, found.has_sound) == (32, 32, True, True)
    assert found.duration == pytest.approx(0.5, abs=0.1)
