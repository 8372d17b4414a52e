"""The videos of synthetic data agree with their annotations."""

import csv

import numpy as np
import pytest
from PIL import Image

from triptych.data import manifest
from triptych.data.synthetic import SyntheticConfig, generate, read_annotations
from triptych.data.synthetic.videos import FRAMES_PER_SECOND
from triptych.errors import UsageError
from triptych.evaluation.localisation import localise
from triptych.media import audio, video

pytestmark = pytest.mark.slow

SETTINGS = {"scenes": 12, "seed": 3, "captions": 1, "image_noise": 0.0, "held_out_fraction": 0.0, "novel_fraction": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    return generate(SyntheticConfig(**SETTINGS), root / "still").parent, generate(
        SyntheticConfig(**SETTINGS, video=True), root / "videos"
    ).parent


def test_a_video_shows_the_scene_of_the_image_and_the_audio(folders):
    still, moving = folders
    assert (still / "annotations.jsonl").read_bytes() == (moving / "annotations.jsonl").read_bytes()
    for scene in read_annotations(moving)[:4]:
        path = moving / f"videos/{scene.id}.mp4"
        info = video.read_info(path)
        assert (info.width, info.height, info.frame_rate) == (64, 64, FRAMES_PER_SECOND)
        assert info.duration == pytest.approx(2.0, abs=0.11)
        video_samples, audio_samples = (audio.read(p, 16_000) for p in (path, still / f"audio/{scene.id}.wav"))
        length = min(len(video_samples), len(audio_samples))
        assert length > 31_000
        assert np.corrcoef(video_samples[:length], audio_samples[:length])[0, 1] > 0.9
        silent_time = next(t / 10 + 0.05 for t in range(20) if all(
            end < t / 10 or start > (t + 1) / 10 for p in scene.objects for start, end in p.notes))  # fmt: skip
        frame = np.asarray(video.read_frames(path, [silent_time])[0], dtype=float)
        image = np.asarray(Image.open(still / f"images/{scene.id}.png").convert("RGB"), dtype=float)
        assert np.abs(frame - image).mean() < 6  # compressed


def test_objects_hop_only_while_their_notes_sound(folders):
    _, moving = folders
    for scene in read_annotations(moving)[:6]:
        times = [(n + 0.5) / FRAMES_PER_SECOND for n in range(2 * FRAMES_PER_SECOND)]
        frames = [np.asarray(f, dtype=float) for f in video.read_frames(moving / f"videos/{scene.id}.mp4", times)]
        rest = np.median(frames, axis=0)
        for annotation in scene.objects:
            x0, y0, x1, y1 = annotation.box
            change = np.array([np.abs(f - rest)[y0:y1, x0:x1].mean() for f in frames])
            sounding = np.array([any(s < t + 0.05 and e > t - 0.05 for s, e in annotation.notes) for t in times])
            assert change[sounding].min() > 2 * change[~sounding].max()


def test_manifest_lists_videos_with_image_and_audio(folders):
    _, moving = folders
    with (moving / "manifest.csv").open(newline="") as file:
        assert list(next(csv.reader(file))) == ["id", "video", "caption_1", "split", "label"]
    table = manifest.read(moving / "manifest.csv")
    assert table.problems == ()
    assert set(table.rows[0].modalities) == {"image", "audio", "text"}


def test_videos_are_deterministic_and_only_text_can_be_noisy(tmp_path, folders, run_dir):
    config = SyntheticConfig(**SETTINGS, video=True)
    again = generate(config, tmp_path / "again").parent / "videos"
    assert [p.read_bytes() for p in sorted(again.iterdir())] == [
        p.read_bytes() for p in sorted((folders[1] / "videos").iterdir())
    ]
    with pytest.raises(UsageError, match="support noise_modality text only"):
        SyntheticConfig(video=True, noise_rate=0.2, noise_modality="image")
    from triptych.checkpoint import load

    with pytest.raises(UsageError, match="only videos"):
        localise(load(run_dir), folders[1], show_progress=False)
