"""Read the properties of a video and its frames at given times; split a video into pairs of image and audio."""

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

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Source

SEEK_THRESHOLD = 3.0  # seconds: for shorter distances, decoding is faster than seeking to a keyframe
MAX_PIXEL_ASPECT_RATIO = 4.0  # larger ratios mean damage
LAST_FRAME_SECONDS = 1.0  # the last frame is also returned for times up to this long after its end


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video. Width and height are in pixels, as displayed."""

    duration: float  # seconds
    width: int
    height: int
    frame_rate: float  # frames per second; 0 if unknown
    has_video: bool
    has_audio: bool


def is_video(path: Path) -> bool:
    """Return whether a file is a container with a video stream."""
    try:
        with container.open_container(path, "video") as file:
            return container.select_stream(file, "video") is not None
    except MediaError:
        return False


def read_info(path: Path) -> VideoInfo:
    """Return the properties of a video."""
    limits.check_file(path, "video")
    with container.open_container(path, "video") as file:
        video_stream, audio_stream = container.select_stream(file, "video"), container.select_stream(file, "audio")
        width, height, frame_rate = 0, 0, 0.0
        if isinstance(video_stream, VideoStream):
            width, height, frame_rate = video_stream.width, video_stream.height, float(video_stream.average_rate or 0)
            # Decode before reading the duration, which may demux the whole file: some files cannot seek back.
            first = next(_decode_frames(file, video_stream, limits.Deadline(path)), None)
            if first is not None:
                width, height = _to_upright_image(path, first, video_stream).size
        seconds = container.read_duration(path, file)
        limits.check_duration(path, seconds)
        has_video = isinstance(video_stream, VideoStream)
        return VideoInfo(seconds, width, height, frame_rate, has_video, audio_stream is not None)


def read_frames(path: Path, times: Sequence[float]) -> list[Image.Image]:
    """Return the frames shown at the given times (seconds), in the order of `times`. The video is decoded once."""
    limits.check_file(path, "video")
    with container.open_container(path, "video") as file:
        reader = _FrameReader(path, file)
        images = {time: reader.read_frame(time) for time in sorted(set(times))}
        return [images[time] for time in times]


@sandbox.decoder(sandbox.validate_seconds)
def find_midpoint(path: Path, start: float | None = None, end: float | None = None) -> float:
    """Return the middle, in seconds, of a segment of a video or of the whole video."""
    limits.check_file(path, "video")
    with container.open_container(path, "video") as file:
        seconds = container.read_duration(path, file)
    begin, stop = start or 0.0, seconds if end is None else min(end, seconds)
    if begin >= stop:
        raise MediaError(f"{path}: no frames from {begin:g} s on; the video is {seconds:g} s long")
    return (begin + stop) / 2


def split_into_segments(path: Path, length: float, hop: float) -> list[tuple[Source, Source]]:
    """Split a video into windows; return the middle frame and the audio of each window as a pair of sources."""
    from triptych.interfaces import Source

    info = read_info(path)
    if not (info.has_video and info.has_audio):
        raise MediaError(f"{path}: has no {'audio' if info.has_video else 'video'} stream; segments need both")
    windows = audio.sliding_windows(info.duration, length, hop)
    return [(Source("image", path, start, end), Source("audio", path, start, end)) for start, end in windows]


class _FrameReader:
    """Reads frames in order of time. Seeks to a keyframe if the next time is more than SEEK_THRESHOLD later."""

    def __init__(self, path: Path, file: InputContainer) -> None:
        stream = container.select_stream(file, "video")
        if not isinstance(stream, VideoStream):
            raise MediaError(f"{path}: has no video stream that can be decoded; give a video or an image")
        limits.check_pixels(path, stream.width, stream.height)
        self.path, self.file, self.stream = path, file, stream
        self._start_time, self._deadline = container.start_time(file), limits.Deadline(path)
        self._frames: Iterator[VideoFrame] = iter(())
        self._current_frame: VideoFrame | None = None  # the frame shown at the last requested time
        self._upcoming_frame: VideoFrame | None = None  # the next frame, decoded ahead
        self._decoded_until = -math.inf  # end of the last decoded frame

    def read_frame(self, time: float) -> Image.Image:
        """Return the frame shown at `time` (seconds). From call to call, `time` must not decrease."""
        if time - self._decoded_until > SEEK_THRESHOLD:
            self._seek(time)
            if self._upcoming_frame is None or self._frame_time(self._upcoming_frame) > time > 0:
                self._seek(0.0)  # the index led to a later frame, or to no frame
        while self._upcoming_frame is not None and self._frame_time(self._upcoming_frame) <= time:
            self._current_frame, self._upcoming_frame = self._upcoming_frame, self._decode_next()
        frame = self._current_frame or self._upcoming_frame
        if frame is None:
            raise MediaError(f"{self.path}: no frame could be decoded; replace or remove the file")
        if self._upcoming_frame is None and time > self._decoded_until + LAST_FRAME_SECONDS:
            raise MediaError(f"{self.path}: no frame at {time:g} s; the video ends at {self._decoded_until:.2f} s")
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
            return max(0.0, self._decoded_until)  # no timestamp: directly after the previous frame
        return float(stamp * frame.time_base) - self._start_time


def _decode_frames(file: InputContainer, stream: VideoStream, deadline: limits.Deadline) -> Iterator[VideoFrame]:
    """Yield the frames from the current position; skip damaged packets."""
    for packet in container.iter_packets(file, deadline, stream):
        try:
            decoded_frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
        except FFmpegError:
            continue
        yield from decoded_frames


def _to_upright_image(path: Path, frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """Return a frame as displayed: rotated, and with square pixels."""
    limits.check_pixels(path, frame.width, frame.height)
    pil_image = frame.to_image()
    ratio = float(stream.sample_aspect_ratio or 1)  # width of a pixel / height of a pixel
    if ratio != 1 and 1 / MAX_PIXEL_ASPECT_RATIO < ratio < MAX_PIXEL_ASPECT_RATIO:
        size = (max(1, round(pil_image.width * ratio)), pil_image.height)
        pil_image = pil_image.resize(size, Image.Resampling.BILINEAR)
    return pil_image.rotate(frame.rotation, expand=True) if frame.rotation else pil_image
