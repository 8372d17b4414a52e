"""Films: what is in one, its frames at given times, and its moments as pairs of picture and sound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.video import VideoFrame, VideoStream
from PIL import Image

from triptych.errors import MediaError
from triptych.media import audio, container, limits, sandbox

if TYPE_CHECKING:  # contracts loads torch
    from triptych.contracts import Source

NEAR = 3.0  # seconds: up to here decoding on is cheaper than going to a keyframe
WIDEST = 4.0  # no camera's pixels are wider or higher than this; beyond it is damage
LATE = 1.0  # seconds for which the last picture stays


@dataclass(frozen=True)
class Info:
    """What a film is, by its header; width and height as it is shown."""

    duration: float  # seconds
    width: int
    height: int
    rate: float  # pictures a second; 0 where the header does not tell
    has_pictures: bool
    has_sound: bool


def is_film(path: Path) -> bool:
    """Whether a file holds pictures in a container we can open."""
    try:
        with container.opened(path, "a film") as film:
            return container.track(film, "video") is not None
    except MediaError:
        return False


def info(path: Path) -> Info:
    """What is in a film."""
    limits.check_file(path, "film")
    with container.opened(path, "a film") as film:
        pictures, sound = container.track(film, "video"), container.track(film, "audio")
        width, height, rate = 0, 0, 0.0
        if isinstance(pictures, VideoStream):
            width, height, rate = pictures.width, pictures.height, float(pictures.average_rate or 0)
            # Before the length, which may have to be read: some files cannot be wound back to their start.
            first = next(_decoded(film, pictures, limits.Deadline(path)), None)
            if first is not None:
                width, height = _upright(path, first, pictures).size
        seconds = container.duration(path, film)
        limits.check_duration(path, seconds)
        return Info(seconds, width, height, rate, isinstance(pictures, VideoStream), sound is not None)


def frames(path: Path, times: Sequence[float]) -> list[Image.Image]:
    """The pictures that are shown at these times (seconds), in their order; the film is decoded forward, once."""
    limits.check_file(path, "film")
    with container.opened(path, "a film") as film:
        reel = _Reel(path, film)
        shown: dict[float, Image.Image] = {}
        for time in sorted(set(times)):
            shown[time] = reel.show(time)
        return [shown[time] for time in times]


@sandbox.decoder(sandbox.seconds)
def middle(path: Path, start: float | None = None, end: float | None = None) -> float:
    """The second in the middle of a moment of a film, or of the whole film."""
    limits.check_file(path, "film")
    with container.opened(path, "a film") as film:
        seconds = container.duration(path, film)
    begin, stop = start or 0.0, seconds if end is None else min(end, seconds)
    if begin >= stop:
        raise MediaError(f"{path}: no pictures from {begin:g} s on; the film is {seconds:g} s long")
    return (begin + stop) / 2


def moments(path: Path, length: float, hop: float) -> list[tuple[Source, Source]]:
    """A film as pairs of picture and sound: each window's sound, and the frame in its middle."""
    from triptych.contracts import Source

    film = info(path)
    if not (film.has_pictures and film.has_sound):
        raise MediaError(f"{path}: has no {'sound' if film.has_pictures else 'pictures'}; moments need both")
    windows = audio.windows(film.duration, length, hop)
    return [(Source("image", path, start, end), Source("audio", path, start, end)) for start, end in windows]


class _Reel:
    """A film that runs forward, and jumps to a keyframe where the next picture is far."""

    def __init__(self, path: Path, film: InputContainer) -> None:
        stream = container.track(film, "video")
        if not isinstance(stream, VideoStream):
            raise MediaError(f"{path}: has no pictures in it that we can read; give a film or a picture")
        limits.check_pixels(path, stream.width, stream.height)
        self.path, self.film, self.stream = path, film, stream
        self._origin, self._deadline = container.origin(film), limits.Deadline(path)
        self._frames: Iterator[VideoFrame] = iter(())
        self._before: VideoFrame | None = None  # the last one that had begun at the time asked for
        self._after: VideoFrame | None = None  # the one after it, decoded ahead
        self._end = -math.inf  # where the last decoded picture ends

    def show(self, time: float) -> Image.Image:
        """The picture at a time; times must not go back."""
        if time - self._end > NEAR:
            self._jump(time)
            if self._after is None or self._begin(self._after) > time > 0:
                self._jump(0.0)  # the index led past it, or nowhere
        while self._after is not None and self._begin(self._after) <= time:
            self._before, self._after = self._after, self._next()
        found = self._before or self._after
        if found is None:
            raise MediaError(f"{self.path}: no picture could be decoded; replace the file or leave it out")
        if self._after is None and time > self._end + LATE:
            raise MediaError(f"{self.path}: no picture at {time:g} s; its pictures end at {self._end:.2f} s")
        return _upright(self.path, found, self.stream)

    def _jump(self, time: float) -> None:
        self.film.seek(math.floor((max(0.0, time) + self._origin) * av.time_base))
        self._frames = _decoded(self.film, self.stream, self._deadline)
        self._before, self._after = None, self._next()

    def _next(self) -> VideoFrame | None:
        frame = next(self._frames, None)
        if frame is not None:
            length = float((frame.duration or 0) * (frame.time_base or 0)) or 1 / float(self.stream.average_rate or 1)
            self._end = self._begin(frame) + length
        return frame

    def _begin(self, frame: VideoFrame) -> float:
        stamp = frame.pts if frame.pts is not None else frame.dts
        if stamp is None or frame.time_base is None:
            return max(0.0, self._end)  # no clock: right after the one before
        return float(stamp * frame.time_base) - self._origin


def _decoded(film: InputContainer, stream: VideoStream, deadline: limits.Deadline) -> Iterator[VideoFrame]:
    """Frame after frame from where the film stands; damaged packets are passed over."""
    for packet in container.packets(film, deadline, stream):
        try:
            found = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
        except FFmpegError:
            continue
        yield from found


def _upright(path: Path, frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """A frame as it is shown: its pixels made square, turned as the film says."""
    limits.check_pixels(path, frame.width, frame.height)
    picture = frame.to_image()
    shape = float(stream.sample_aspect_ratio or 1)  # width of a pixel over its height
    if shape != 1 and 1 / WIDEST < shape < WIDEST:
        picture = picture.resize((max(1, round(picture.width * shape)), picture.height), Image.Resampling.BILINEAR)
    return picture.rotate(frame.rotation, expand=True) if frame.rotation else picture
