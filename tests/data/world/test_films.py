"""Films of a made world really show and sound what its truth says."""

import csv

import numpy as np
import pytest
from PIL import Image

from triptych.data import manifest
from triptych.data.world import World, make, read_truth
from triptych.data.world.films import FRAMES
from triptych.errors import UsageError
from triptych.evaluation.localisation import localise
from triptych.media import audio, video

pytestmark = pytest.mark.slow

SETTINGS = {"scenes": 12, "seed": 3, "captions": 1, "picture_noise": 0.0, "held_out": 0.0, "novel": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    room = tmp_path_factory.mktemp("films")
    return make(World(**SETTINGS), room / "still").parent, make(World(**SETTINGS, films=True), room / "films").parent


def test_a_film_is_the_scene_of_the_picture_and_the_sound(folders):
    still, moving = folders
    assert (still / "truth.jsonl").read_bytes() == (moving / "truth.jsonl").read_bytes()
    for truth in read_truth(moving)[:4]:
        film = moving / f"films/{truth.id}.mp4"
        info = video.info(film)
        assert (info.width, info.height, info.rate) == (64, 64, FRAMES)
        assert info.duration == pytest.approx(2.0, abs=0.11)
        heard, played = (audio.read(p, 16_000) for p in (film, still / f"sounds/{truth.id}.wav"))
        length = min(len(heard), len(played))
        assert length > 31_000
        assert np.corrcoef(heard[:length], played[:length])[0, 1] > 0.9
        quiet = next(t / 10 + 0.05 for t in range(20) if all(
            end < t / 10 or start > (t + 1) / 10 for p in truth.performers for start, end in p.notes))  # fmt: skip
        shown = np.asarray(video.frames(film, [quiet])[0], dtype=float)
        drawn = np.asarray(Image.open(still / f"images/{truth.id}.png").convert("RGB"), dtype=float)
        assert np.abs(shown - drawn).mean() < 6  # compressed


def test_things_hop_while_they_sound_and_only_then(folders):
    _, moving = folders
    for truth in read_truth(moving)[:6]:
        times = [(n + 0.5) / FRAMES for n in range(2 * FRAMES)]
        frames = [np.asarray(f, dtype=float) for f in video.frames(moving / f"films/{truth.id}.mp4", times)]
        rest = np.median(frames, axis=0)
        for performer in truth.performers:
            x0, y0, x1, y1 = performer.box
            change = np.array([np.abs(f - rest)[y0:y1, x0:x1].mean() for f in frames])
            sounding = np.array([any(s < t + 0.05 and e > t - 0.05 for s, e in performer.notes) for t in times])
            assert change[sounding].min() > 2 * change[~sounding].max()


def test_its_manifest_names_films_that_are_picture_and_sound(folders):
    _, moving = folders
    with (moving / "manifest.csv").open(newline="") as file:
        assert list(next(csv.reader(file))) == ["id", "video", "caption_1", "split", "label"]
    table = manifest.read(moving / "manifest.csv")
    assert table.problems == ()
    assert set(table.rows[0].modalities) == {"image", "audio", "text"}


def test_the_same_settings_give_the_same_films_and_swaps_are_of_text(tmp_path, folders, run):
    world = World(**SETTINGS, films=True)
    again = make(world, tmp_path / "again").parent / "films"
    assert [p.read_bytes() for p in sorted(again.iterdir())] == [
        p.read_bytes() for p in sorted((folders[1] / "films").iterdir())
    ]
    with pytest.raises(UsageError, match="only the text"):
        World(films=True, noise=0.2, noise_modality="image")
    from triptych.checkpoint import load

    with pytest.raises(UsageError, match="only films"):
        localise(load(run), folders[1], show=False)
