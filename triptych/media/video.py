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

if TYPE_CHECKING:  # interfaces loads torch
    from triptych.interfaces import Source

SEEK_THRESHOLD = 3.0  # seconds: up to here decoding on is cheaper than going to a keyframe
MAX_PIXEL_ASPECT_RATIO = 4.0  # no camera's pixels are wider or higher than this; beyond it is damage
LAST_FRAME_SECONDS = 1.0  # seconds for which the last picture stays


@dataclass(frozen=True)
class VideoInfo:
    """What a film is, by its header; width and height as it is shown."""

    duration: float  # seconds
    width: int
    height: int
    frame_rate: float  # pictures a second; 0 where the header does not tell
    has_video: bool
    has_audio: bool


def is_video(path: Path) -> bool:
    """Whether a file holds pictures in a container we can open."""
    try:
        with container.open_container(path, "a film") as file:
            return container.select_stream(file, "video") is not None
    except MediaError:
        return False


def read_info(path: Path) -> VideoInfo:
    """What is in a film."""
    limits.check_file(path, "film")
    with container.open_container(path, "a film") as file:
        video_stream, audio_stream = container.select_stream(file, "video"), container.select_stream(file, "audio")
        width, height, frame_rate = 0, 0, 0.0
        if isinstance(video_stream, VideoStream):
            width, height, frame_rate = video_stream.width, video_stream.height, float(video_stream.average_rate or 0)
            # Before the length, which may have to be read: some files cannot be wound back to their start.
            first = next(_decode_frames(file, video_stream, limits.Deadline(path)), None)
            if first is not None:
                width, height = _to_upright_image(path, first, video_stream).size
        seconds = container.read_duration(path, file)
        limits.check_duration(path, seconds)
        return VideoInfo(
            seconds, width, height, frame_rate, isinstance(video_stream, VideoStream), audio_stream is not None
        )


def read_frames(path: Path, times: Sequence[float]) -> list[Image.Image]:
    """The pictures that are shown at these times (seconds), in their order; the film is decoded forward, once."""
    limits.check_file(path, "film")
    with container.open_container(path, "a film") as file:
        reader = _FrameReader(path, file)
        images: dict[float, Image.Image] = {}
        for time in sorted(set(times)):
            images[time] = reader.read_frame(time)
        return [images[time] for time in times]


@sandbox.decoder(sandbox.validate_seconds)
def find_midpoint(path: Path, start: float | None = None, end: float | None = None) -> float:
    """The second in the middle of a moment of a film, or of the whole film."""
    limits.check_file(path, "film")
    with container.open_container(path, "a film") as file:
        seconds = container.read_duration(path, file)
    begin, stop = start or 0.0, seconds if end is None else min(end, seconds)
    if begin >= stop:
        raise MediaError(f"{path}: no pictures from {begin:g} s on; the film is {seconds:g} s long")
    return (begin + stop) / 2


def split_into_segments(path: Path, length: float, hop: float) -> list[tuple[Source, Source]]:
    """A film as pairs of picture and sound: each window's sound, and the frame in its middle."""
    from triptych.interfaces import Source

    info = read_info(path)
    if not (info.has_video and info.has_audio):
        raise MediaError(f"{path}: has no {'sound' if info.has_video else 'pictures'}; moments need both")
    windows = audio.sliding_windows(info.duration, length, hop)
    return [(Source("image", path, start, end), Source("audio", path, start, end)) for start, end in windows]


class _FrameReader:
    """A film that runs forward, and jumps to a keyframe where the next picture is far."""

    def __init__(self, path: Path, file: InputContainer) -> None:
        stream = container.select_stream(file, "video")
        if not isinstance(stream, VideoStream):
            raise MediaError(f"{path}: has no pictures in it that we can read; give a film or a picture")
        limits.check_pixels(path, stream.width, stream.height)
        self.path, self.file, self.stream = path, file, stream
        self._start_time, self._deadline = container.start_time(file), limits.Deadline(path)
        self._frames: Iterator[VideoFrame] = iter(())
        self._current_frame: VideoFrame | None = None  # the last one that had begun at the time asked for
        self._upcoming_frame: VideoFrame | None = None  # the one after it, decoded ahead
        self._decoded_until = -math.inf  # where the last decoded picture ends

    def read_frame(self, time: float) -> Image.Image:
        """The picture at a time; times must not go back."""
        if time - self._decoded_until > SEEK_THRESHOLD:
            self._seek(time)
            if self._upcoming_frame is None or self._frame_time(self._upcoming_frame) > time > 0:
                self._seek(0.0)  # the index led past it, or nowhere
        while self._upcoming_frame is not None and self._frame_time(self._upcoming_frame) <= time:
            self._current_frame, self._upcoming_frame = self._upcoming_frame, self._decode_next()
        frame = self._current_frame or self._upcoming_frame
        if frame is None:
            raise MediaError(f"{self.path}: no picture could be decoded; replace the file or leave it out")
        if self._upcoming_frame is None and time > self._decoded_until + LAST_FRAME_SECONDS:
            raise MediaError(f"{self.path}: no picture at {time:g} s; its pictures end at {self._decoded_until:.2f} s")
        return _to_upright_image(self.path, frame, self.stream)

    def _seek(self, time: float) -> None:
        self.file.seek(math.floor((max(0.0, time) + self._start_time) * av.time_base))
        self._frames = _decode_frames(self.file, self.stream, self._deadline)
        self._current_frame, self._upcoming_frame = None, self._decode_next()

    def _decode_next(self) -> VideoFrame | None:
        frame = next(self._frames, None)
        if frame is not None:
            length = float((frame.duration or 0) * (frame.time_base or 0)) or 1 / float(self.stream.average_rate or 1)
            self._decoded_until = self._frame_time(frame) + length
        return frame

    def _frame_time(self, frame: VideoFrame) -> float:
        stamp = frame.pts if frame.pts is not None else frame.dts
        if stamp is None or frame.time_base is None:
            return max(0.0, self._decoded_until)  # no clock: right after the one before
        return float(stamp * frame.time_base) - self._start_time


def _decode_frames(file: InputContainer, stream: VideoStream, deadline: limits.Deadline) -> Iterator[VideoFrame]:
    """Frame after frame from where the film stands; damaged packets are passed over."""
    for packet in container.iter_packets(file, deadline, stream):
        try:
            decoded_frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
        except FFmpegError:
            continue
        yield from decoded_frames


def _to_upright_image(path: Path, frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """A frame as it is shown: its pixels made square, turned as the film says."""
    limits.check_pixels(path, frame.width, frame.height)
    pil_image = frame.to_image()
    pixel_aspect_ratio = float(stream.sample_aspect_ratio or 1)  # width of a pixel over its height
    if pixel_aspect_ratio != 1 and 1 / MAX_PIXEL_ASPECT_RATIO < pixel_aspect_ratio < MAX_PIXEL_ASPECT_RATIO:
        pil_image = pil_image.resize(
            (max(1, round(pil_image.width * pixel_aspect_ratio)), pil_image.height), Image.Resampling.BILINEAR
        )
    return pil_image.rotate(frame.rotation, expand=True) if frame.rotation else pil_image
