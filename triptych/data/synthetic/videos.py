"""Film a scene: its things hop while they sound, and the sound is the scene's own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from triptych.data.synthetic.audio import SAMPLE_RATE, TimeSpan
from triptych.data.synthetic.images import draw_image
from triptych.data.synthetic.scenes import Scene

FRAMES_PER_SECOND = 10  # a second
CRF = "18"  # libx264's measure of loss: hardly to be seen
AUDIO_BIT_RATE = 64_000  # of sound a second: AAC hears no more in 8 kHz


def render_frames(
    scene: Scene,
    size: int,
    jitter: float,
    noise: float,
    notes: Sequence[Sequence[TimeSpan]],
    seconds: float,
    rng: np.random.Generator,
) -> list[Image.Image]:
    """The frames of a scene: everything at rest, but each actor a little off its place while one of its notes sounds.

    At rest it is the picture that `draw` makes with the same generator, grain and all.
    """
    rendered_frames: dict[tuple[bool, ...], Image.Image] = {}  # few are different, as no two actors sound at once
    frames = []
    for number in range(round(seconds * FRAMES_PER_SECOND)):
        start, end = number / FRAMES_PER_SECOND, (number + 1) / FRAMES_PER_SECOND
        is_hopping = tuple(any(first < end and last > start for first, last in spans) for spans in notes)
        if is_hopping not in rendered_frames:
            rendered_frames[is_hopping], _ = draw_image(scene, size, jitter, noise, deepcopy(rng), is_hopping)
        frames.append(rendered_frames[is_hopping])
    return frames


def save_video(path: Path, frames: Sequence[Image.Image], waveform: NDArray[np.int16]) -> None:
    """Frames and 16 kHz samples as H.264 and AAC; one thread, so that the same scene gives the same bytes."""
    import av  # only films need it

    with av.open(str(path), "w", format="mp4") as file:
        video_stream = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"crf": CRF, "threads": "1"})
        video_stream.width, video_stream.height = (
            (frames[0].width + 1) // 2 * 2,
            (frames[0].height + 1) // 2 * 2,
        )  # even
        video_stream.pix_fmt = "yuv420p"
        audio_stream = file.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        audio_stream.bit_rate = AUDIO_BIT_RATE
        for number, frame in enumerate(frames):
            video_frame = av.VideoFrame.from_image(frame.resize((video_stream.width, video_stream.height)))
            video_frame.pts, video_frame.time_base = number, Fraction(1, FRAMES_PER_SECOND)
            file.mux(video_stream.encode(video_frame))
        file.mux(video_stream.encode(None))
        audio_frame = av.AudioFrame.from_ndarray(waveform[None], format="s16", layout="mono")
        audio_frame.sample_rate, audio_frame.pts = SAMPLE_RATE, 0
        file.mux(audio_stream.encode(audio_frame))
        file.mux(audio_stream.encode(None))
