"""Film a scene: its things hop while they sound, and the sound is the scene's own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from triptych.data.world.pictures import draw
from triptych.data.world.scenes import Scene
from triptych.data.world.sounds import RATE, Span

FRAMES = 10  # a second
SHARP = "18"  # libx264's measure of loss: hardly to be seen
BITS = 64_000  # of sound a second: AAC hears no more in 8 kHz


def shoot(
    scene: Scene,
    size: int,
    jitter: float,
    noise: float,
    notes: Sequence[Sequence[Span]],
    seconds: float,
    rng: np.random.Generator,
) -> list[Image.Image]:
    """The frames of a scene: everything at rest, but each actor a little off its place while one of its notes sounds.

    At rest it is the picture that `draw` makes with the same generator, grain and all.
    """
    shown: dict[tuple[bool, ...], Image.Image] = {}  # few are different, as no two actors sound at once
    frames = []
    for number in range(round(seconds * FRAMES)):
        start, end = number / FRAMES, (number + 1) / FRAMES
        hopping = tuple(any(first < end and last > start for first, last in spans) for spans in notes)
        if hopping not in shown:
            shown[hopping], _ = draw(scene, size, jitter, noise, deepcopy(rng), hopping)
        frames.append(shown[hopping])
    return frames


def save(path: Path, frames: Sequence[Image.Image], sound: NDArray[np.int16]) -> None:
    """Frames and 16 kHz samples as H.264 and AAC; one thread, so that the same scene gives the same bytes."""
    import av  # only films need it

    with av.open(str(path), "w", format="mp4") as file:
        pictures = file.add_stream("libx264", rate=FRAMES, options={"crf": SHARP, "threads": "1"})
        pictures.width, pictures.height = (frames[0].width + 1) // 2 * 2, (frames[0].height + 1) // 2 * 2  # even
        pictures.pix_fmt = "yuv420p"
        voice = file.add_stream("aac", rate=RATE, layout="mono")
        voice.bit_rate = BITS
        for number, frame in enumerate(frames):
            shown = av.VideoFrame.from_image(frame.resize((pictures.width, pictures.height)))
            shown.pts, shown.time_base = number, Fraction(1, FRAMES)
            file.mux(pictures.encode(shown))
        file.mux(pictures.encode(None))
        samples = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
        samples.sample_rate, samples.pts = RATE, 0
        file.mux(voice.encode(samples))
        file.mux(voice.encode(None))
