"""The sound in a container: decoded packet by packet, laid on the file's own time line, resampled by nobody."""

from __future__ import annotations

import math
from pathlib import Path

import av
import numpy as np
from av.audio import AudioFrame, AudioStream
from av.container import InputContainer
from av.error import FFmpegError

from triptych.errors import MediaError
from triptych.media import container, limits

PREROLL = 0.5  # seconds decoded and dropped before a moment, until the decoder no longer depends on what came before
MAX_JITTER = 0.05  # seconds by which time stamps may waver before they mean a gap
MAX_START_DELAY = 600.0  # seconds: no sound begins later than this after its pictures
END_TOLERANCE = 0.1  # seconds that codecs with long frames may lack at the end
UNSAFE_PLANAR_CHANNELS = (
    8  # channels from which PyAV reads past the end of a planar frame; packed into one plane they are safe
)
GRID_FRAMES = 8  # frames from which the grid of frames is learnt
VORBIS_GRID = 64  # samples: Vorbis frames vary, but begin at multiples of this


def read(path: Path, start: float, end: float, supported_formats: str) -> tuple[np.ndarray, int]:
    """Mono float32 between start and end (seconds) at the file's own rate, and that rate; empty past the end."""
    with container.open_container(path, "sound", supported_formats) as file:
        stream = _select_audio_stream(path, file, supported_formats)
        origin, deadline = container.start_time(file), limits.Deadline(path)
        timeline = Timeline(path, start, end)
        if start > 0:
            timeline.frame_grid = _estimate_frame_grid(file, stream, deadline)
            _seek_before(file, stream, start, deadline)
        last_packet_end = last_audio_end = 0.0  # where the packets of any stream, and of the sound, end
        for packet in container.iter_packets(file, deadline):
            is_audio, last = packet.stream_index == stream.index, math.inf
            if packet.pts is not None and packet.time_base is not None:
                first = float(packet.pts * packet.time_base) - origin
                last = first + float((packet.duration or 0) * packet.time_base)
                last_packet_end = max(last_packet_end, last)
                if is_audio:
                    last_audio_end = last
                    timeline.record_packet_start(first)
            if is_audio and last >= start - PREROLL:
                timeline.decode_packet(packet, origin)
                if timeline.is_full:
                    return timeline.collect_samples(end), timeline.rate
        header_seconds = container.header_duration(path, file)
        if header_seconds is not None:
            limits.check_not_truncated(path, last_packet_end, header_seconds, END_TOLERANCE)
        if not timeline.rate and last_audio_end > start:
            raise MediaError(f"{path}: no sound could be decoded; replace the file or leave it out")
        return timeline.collect_samples(last_audio_end), timeline.rate or 1


def read_duration(path: Path, supported_formats: str) -> float:
    """Seconds of the whole file, by its header where that tells."""
    with container.open_container(path, "sound", supported_formats) as file:
        _select_audio_stream(path, file, supported_formats)
        return container.read_duration(path, file)


def _select_audio_stream(path: Path, file: InputContainer, supported_formats: str) -> AudioStream:
    stream = container.select_stream(file, "audio")
    if not isinstance(stream, AudioStream):
        raise MediaError(f"{path}: has no sound in it that we can read; give {supported_formats}")
    return stream


def _seek_before(file: InputContainer, stream: AudioStream, start: float, deadline: limits.Deadline) -> None:
    """Go to a little before start, or to the beginning where the file's index leads past it."""
    origin = container.start_time(file)
    target = max(0.0, start - PREROLL)
    file.seek(math.floor((target + origin) * av.time_base))
    stamp = next((p.pts for p in container.iter_packets(file, deadline, stream) if p.pts is not None), None)
    landed_at = math.inf if stamp is None or stream.time_base is None else float(stamp * stream.time_base) - origin
    file.seek(math.floor(((target if landed_at < start - MAX_JITTER else 0.0) + origin) * av.time_base))


class Timeline:
    """Decoded frames in their places: sample 0 is the file's start."""

    def __init__(self, path: Path, start: float, end: float) -> None:
        self.path, self.start, self.end = path, start, end
        self.rate = 0
        self.frame_grid: tuple[int, int] | None = None
        self._stream_start: float | None = None  # seconds: where the first packet says the sound begins
        self._next_sample = 0  # the place of the next sample
        self._lost_samples = 0  # samples that should be there and are not
        self._interleaver = av.AudioResampler(format="flt")  # of the format alone: rate and channels stay
        self._packet_bytes = self._broken_bytes = 0  # of packets, and of those that could not be decoded
        self._chunks: list[np.ndarray] = []
        self._first_sample = 0  # the place of the first sample kept

    @property
    def is_full(self) -> bool:
        """Whether the end that was asked for is reached."""
        return self.rate > 0 and self._next_sample >= self.end * self.rate

    def record_packet_start(self, packet_start: float) -> None:
        """Note where a packet begins; if the first ones cannot be decoded, that much is lost."""
        if self._stream_start is None:
            self._stream_start = max(0.0, packet_start)

    def decode_packet(self, packet: av.Packet, origin: float) -> None:
        """Decode a packet and lay its frames; a damaged one leaves a gap, and its bytes are counted."""
        frames = _decode_packet(packet)
        self._packet_bytes += packet.size
        self._broken_bytes += 0 if frames is not None else packet.size
        for frame in frames or ():
            self._append_frame(frame, origin)

    def _append_frame(self, frame: AudioFrame, origin: float) -> None:
        """Put a frame where its time stamp says, or after the one before where that is nearly the same."""
        if not self.rate:
            self._init_format(frame)
        elif frame.sample_rate != self.rate:
            raise MediaError(f"{self.path}: changes its sample rate on the way; export the file again")
        if frame.pts is not None and frame.time_base is not None:
            gap = round((float(frame.pts * frame.time_base) - origin) * self.rate) - self._next_sample
            if not self._chunks and self.start > 0:
                self._next_sample = self._first_sample = self._snap_to_grid(self._next_sample + gap)
            elif abs(gap) > MAX_JITTER * self.rate:
                self._fill_gap(gap)
        limits.check_samples(self.path, self._next_sample + frame.samples - self._first_sample)
        is_unsafe_planar = frame.format.is_planar and frame.layout.nb_channels >= UNSAFE_PLANAR_CHANNELS
        samples = np.concatenate(
            [_to_mono(piece) for piece in (self._interleaver.resample(frame) if is_unsafe_planar else [frame])]
        )
        self._chunks.append(samples)
        self._next_sample += len(samples)

    def collect_samples(self, expected_end: float) -> np.ndarray:
        """What was asked for, unless too much of it is lost; `audible` is where the sound should end."""
        if not self.rate:
            return np.zeros(0, np.float32)
        begin, stop = max(self.start, self._stream_start or 0.0), min(expected_end, self.end)
        missing_seconds = self._lost_samples / self.rate + max(0.0, stop - self._next_sample / self.rate)
        missing_seconds += max(0.0, self._first_sample / self.rate - begin) if self.start else 0.0
        if (
            self._broken_bytes > limits.MAX_MISSING_FRACTION * self._packet_bytes
        ):  # raw streams have no clock that would show it
            missing_seconds = max(
                missing_seconds,
                self._broken_bytes / self._packet_bytes * (self._next_sample / self.rate - self.start) + END_TOLERANCE,
            )
        if limits.is_too_much_missing(missing_seconds, max(stop - self.start, 0.0), END_TOLERANCE):
            raise MediaError(
                f"{self.path}: {missing_seconds:.2f} s of sound are damaged or missing; fetch the file again"
            )
        first = round(self.start * self.rate)
        last = self._next_sample if math.isinf(self.end) else min(self._next_sample, round(self.end * self.rate))
        silence = np.zeros(min(max(0, self._first_sample - first), max(0, last - first)), np.float32)
        all_samples = np.concatenate([silence, *self._chunks])
        return all_samples[max(0, first - self._first_sample) :][: max(0, last - first)]

    def _init_format(self, frame: AudioFrame) -> None:
        """Learn the rate from the first frame: headers of some codecs tell half of it."""
        self.rate, channels = frame.sample_rate, frame.layout.nb_channels
        limits.check_audio_format(self.path, self.rate, channels)
        if (self._stream_start or 0.0) - self.start > MAX_START_DELAY:
            raise MediaError(f"{self.path}: its sound begins after {self._stream_start:.0f} s; fetch the file again")
        self._next_sample = self._first_sample = round((self._stream_start or 0.0) * self.rate)
        if not self.start and self._next_sample:  # the sound begins after the pictures do
            self._first_sample = 0
            self._chunks.append(np.zeros(self._next_sample, np.float32))

    def _fill_gap(self, gap: int) -> None:
        """Keep to the clock over a gap; stamps that go back are a sign of damage too, and count as loss."""
        if self._next_sample + gap > self.start * self.rate:
            self._lost_samples += abs(gap)
        if limits.is_too_much_missing(self._lost_samples / self.rate, math.inf):
            raise MediaError(
                f"{self.path}: {self._lost_samples / self.rate:.2f} s of sound are missing before "
                f"{(self._next_sample + gap) / self.rate:.2f} s; fetch the file again"
            )
        if gap > 0:
            self._chunks.append(np.zeros(gap, np.float32))
            self._next_sample += gap

    def _snap_to_grid(self, sample_index: int) -> int:
        """Milliseconds are too coarse for samples; frames begin on a grid, which tells the exact place."""
        if self.frame_grid is None:
            return sample_index
        phase, step = self.frame_grid
        return phase + round((sample_index - phase) / step) * step


def _estimate_frame_grid(
    file: InputContainer, stream: AudioStream, deadline: limits.Deadline
) -> tuple[int, int] | None:
    """Where frames begin, as (first, step) in samples, of a file whose clock is coarser than its samples."""
    frames: list[AudioFrame] = []
    for packet in container.iter_packets(file, deadline, stream):
        frames += _decode_packet(packet) or ()
        if len(frames) >= GRID_FRAMES:
            break
    untrimmed = frames[1:-1]  # the first may be trimmed; the last may be too, in a short file
    if not untrimmed or stream.time_base is None or stream.time_base * frames[0].sample_rate <= 1:
        return None
    rate, stamp = frames[0].sample_rate, frames[0].pts or 0
    first = round((float(stamp * stream.time_base) - container.start_time(file)) * rate)
    step = VORBIS_GRID if stream.codec_context.name == "vorbis" else math.gcd(*(frame.samples for frame in untrimmed))
    is_finer = step < 2 * stream.time_base * rate
    return None if is_finer else (max(0, first) + frames[0].samples, step)


def _decode_packet(packet: av.Packet) -> list[AudioFrame] | None:
    """The frames of a packet; None of a damaged one."""
    try:
        return [frame for frame in packet.decode() if isinstance(frame, AudioFrame) and frame.samples]
    except FFmpegError:
        return None


def _to_mono(frame: AudioFrame) -> np.ndarray:
    """The mean of a frame's channels as float32 within ±1."""
    data: np.ndarray = frame.to_ndarray()
    channels = frame.layout.nb_channels
    if data.dtype == np.uint8:
        data = (data.astype(np.float32) - 128) / 128
    elif data.dtype.kind == "i":
        data = data.astype(np.float32) / 2.0 ** (8 * data.dtype.itemsize - 1)
    if not frame.format.is_planar:
        data = data.reshape(-1, channels).T
    with np.errstate(invalid="ignore", over="ignore"):  # judged once the whole is there
        return (data[0] if channels == 1 else data.mean(axis=0)).astype(np.float32, copy=False)
