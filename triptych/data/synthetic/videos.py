"""Render the video of a scene. Objects hop while their notes sound. The audio track is the audio of the scene."""

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

FRAMES_PER_SECOND = 10
CRF = "18"  # constant rate factor of libx264; 18 is visually almost lossless
AUDIO_BIT_RATE = 64_000  # bits per second, enough for a bandwidth of 8 kHz


def render_frames(
    scene: Scene,
    size: int,
    jitter: float,
    noise: float,
    notes: Sequence[Sequence[TimeSpan]],
    seconds: float,
    rng: np.random.Generator,
) -> list[Image.Image]:
    """Render the frames of a scene. An object is displaced while one of its notes sounds.

    A frame without displaced objects equals the image that `draw_image` returns for the same generator state.
    """
    rendered_frames: dict[tuple[bool, ...], Image.Image] = {}  # objects that hop -> frame; most frames repeat
    frames = []
    for number in range(round(seconds * FRAMES_PER_SECOND)):
        start, end = number / FRAMES_PER_SECOND, (number + 1) / FRAMES_PER_SECOND
        is_hopping = tuple(any(first < end and last > start for first, last in spans) for spans in notes)
        if is_hopping not in rendered_frames:
            rendered_frames[is_hopping], _ = draw_image(scene, size, jitter, noise, deepcopy(rng), is_hopping)
        frames.append(rendered_frames[is_hopping])
    return frames


def save_video(path: Path, frames: Sequence[Image.Image], waveform: NDArray[np.int16]) -> None:
    """Encode frames and 16 kHz samples as H.264 and AAC, with a single thread, so that the bytes are reproducible."""
    import av  # slow to import, and not needed without videos

    with av.open(str(path), "w", format="mp4") as file:
        video_stream = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"crf": CRF, "threads": "1"})
        # yuv420p needs even sizes.
        video_stream.width, video_stream.height = ((side + 1) // 2 * 2 for side in frames[0].size)
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
