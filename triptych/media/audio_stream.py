"""Decode the audio stream of a container packet by packet; place each frame by its timestamp, without resampling."""

import math
from pathlib import Path

import av
import numpy as np
from av.audio import AudioFrame, AudioStream
from av.container import InputContainer
from av.error import FFmpegError

from triptych.errors import MediaError
from triptych.media import container, limits

PREROLL = 0.5  # seconds decoded and dropped before a segment, because a decoder's output depends on earlier packets
MAX_JITTER = 0.05  # seconds: a larger difference between a timestamp and the end of the previous frame is a gap
MAX_START_DELAY = 600.0  # seconds by which audio may start after the video
END_TOLERANCE = 0.1  # seconds that may be missing at the end, for codecs with long frames
# With this many channels or more, PyAV reads past the end of a planar frame; interleaved frames are safe.
UNSAFE_PLANAR_CHANNELS = 8
GRID_FRAMES = 8  # frames from which the frame grid is estimated
VORBIS_GRID = 64  # samples: Vorbis frames vary in length, but start at multiples of 64 samples


def read(path: Path, start: float, end: float, supported_formats: str) -> tuple[np.ndarray, int]:
    """Return the mono float32 samples from `start` to `end` (seconds) and the file's sample rate in Hz."""
    with container.open_container(path, "audio", supported_formats) as file:
        stream = _select_audio_stream(path, file, supported_formats)
        origin, deadline = container.start_time(file), limits.Deadline(path)
        timeline = Timeline(path, start, end)
        if start > 0:
            timeline.frame_grid = _estimate_frame_grid(file, stream, deadline)
            _seek_before(file, stream, start, deadline)
        last_packet_end = last_audio_end = 0.0  # seconds: end of the last packet of any stream, and of the audio
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
            raise MediaError(f"{path}: no audio could be decoded; replace or remove the file")
        return timeline.collect_samples(last_audio_end), timeline.rate or 1


def read_duration(path: Path, supported_formats: str) -> float:
    """Return the duration of the file in seconds, from the file's header if possible."""
    with container.open_container(path, "audio", supported_formats) as file:
        _select_audio_stream(path, file, supported_formats)
        return container.read_duration(path, file)


def _select_audio_stream(path: Path, file: InputContainer, supported_formats: str) -> AudioStream:
    stream = container.select_stream(file, "audio")
    if not isinstance(stream, AudioStream):
        raise MediaError(f"{path}: has no audio stream that can be decoded; give {supported_formats}")
    return stream


def _seek_before(file: InputContainer, stream: AudioStream, start: float, deadline: limits.Deadline) -> None:
    """Seek to shortly before `start` (seconds), or to the beginning if the file's index leads to a later time."""
    origin = container.start_time(file)
    target = max(0.0, start - PREROLL)
    file.seek(math.floor((target + origin) * av.time_base))
    stamp = next((p.pts for p in container.iter_packets(file, deadline, stream) if p.pts is not None), None)
    landed_at = math.inf if stamp is None or stream.time_base is None else float(stamp * stream.time_base) - origin
    file.seek(math.floor(((target if landed_at < start - MAX_JITTER else 0.0) + origin) * av.time_base))


class Timeline:
    """Decoded audio frames at their sample positions; sample 0 is the start of the file."""

    def __init__(self, path: Path, start: float, end: float) -> None:
        self.path, self.start, self.end = path, start, end
        self.rate = 0
        self.frame_grid: tuple[int, int] | None = None
        self._stream_start: float | None = None  # seconds: start of the first packet
        self._next_sample = 0  # position of the next sample
        self._lost_samples = 0  # samples in gaps
        self._interleaver = av.AudioResampler(format="flt")  # changes the sample format only
        self._packet_bytes = self._broken_bytes = 0  # bytes of all packets, and of undecodable packets
        self._chunks: list[np.ndarray] = []
        self._first_sample = 0  # position of the first retained sample

    @property
    def is_full(self) -> bool:
        """Whether the requested end has been decoded."""
        return self.rate > 0 and self._next_sample >= self.end * self.rate

    def record_packet_start(self, packet_start: float) -> None:
        """Record the start of the first packet, so that undecodable packets count as missing audio."""
        if self._stream_start is None:
            self._stream_start = max(0.0, packet_start)

    def decode_packet(self, packet: av.Packet, origin: float) -> None:
        """Decode a packet and append its frames. A damaged packet leaves a gap; count the bytes of damaged packets."""
        frames = _decode_packet(packet)
        self._packet_bytes += packet.size
        self._broken_bytes += 0 if frames is not None else packet.size
        for frame in frames or ():
            self._append_frame(frame, origin)

    def _append_frame(self, frame: AudioFrame, origin: float) -> None:
        """Place a frame at its timestamp, or right after the previous frame if they differ by at most MAX_JITTER."""
        if not self.rate:
            self._init_format(frame)
        elif frame.sample_rate != self.rate:
            raise MediaError(f"{self.path}: the sample rate changes within the file; export the file again")
        if frame.pts is not None and frame.time_base is not None:
            gap = round((float(frame.pts * frame.time_base) - origin) * self.rate) - self._next_sample
            if not self._chunks and self.start > 0:
                self._next_sample = self._first_sample = self._snap_to_grid(self._next_sample + gap)
            elif abs(gap) > MAX_JITTER * self.rate:
                self._fill_gap(gap)
        limits.check_samples(self.path, self._next_sample + frame.samples - self._first_sample)
        is_unsafe_planar = frame.format.is_planar and frame.layout.nb_channels >= UNSAFE_PLANAR_CHANNELS
        pieces = self._interleaver.resample(frame) if is_unsafe_planar else [frame]
        samples = np.concatenate([_to_mono(piece) for piece in pieces])
        self._chunks.append(samples)
        self._next_sample += len(samples)

    def collect_samples(self, expected_end: float) -> np.ndarray:
        """Return the requested samples. Raise if too many are missing before `expected_end` (seconds)."""
        if not self.rate:
            return np.zeros(0, np.float32)
        begin, stop = max(self.start, self._stream_start or 0.0), min(expected_end, self.end)
        missing_seconds = self._lost_samples / self.rate + max(0.0, stop - self._next_sample / self.rate)
        missing_seconds += max(0.0, self._first_sample / self.rate - begin) if self.start else 0.0
        # Raw streams have no timestamps that would reveal gaps.
        if self._broken_bytes > limits.MAX_MISSING_FRACTION * self._packet_bytes:
            seconds = self._next_sample / self.rate - self.start
            missing_seconds = max(missing_seconds, self._broken_bytes / self._packet_bytes * seconds + END_TOLERANCE)
        if limits.is_too_much_missing(missing_seconds, max(stop - self.start, 0.0), END_TOLERANCE):
            problem = f"{missing_seconds:.2f} s of audio are damaged or missing"
            raise MediaError(f"{self.path}: {problem}; fetch the file again")
        first = round(self.start * self.rate)
        last = self._next_sample if math.isinf(self.end) else min(self._next_sample, round(self.end * self.rate))
        silence = np.zeros(min(max(0, self._first_sample - first), max(0, last - first)), np.float32)
        all_samples = np.concatenate([silence, *self._chunks])
        return all_samples[max(0, first - self._first_sample) :][: max(0, last - first)]

    def _init_format(self, frame: AudioFrame) -> None:
        """Read the sample rate from the first frame, because some codecs state half of the rate in the header."""
        self.rate, channels = frame.sample_rate, frame.layout.nb_channels
        limits.check_audio_format(self.path, self.rate, channels)
        if (self._stream_start or 0.0) - self.start > MAX_START_DELAY:
            raise MediaError(f"{self.path}: the audio starts after {self._stream_start:.0f} s; fetch the file again")
        self._next_sample = self._first_sample = round((self._stream_start or 0.0) * self.rate)
        if not self.start and self._next_sample:  # the audio starts after the video
            self._first_sample = 0
            self._chunks.append(np.zeros(self._next_sample, np.float32))

    def _fill_gap(self, gap: int) -> None:
        """Fill a gap (in samples) with silence. A negative gap is a sign of damage and counts as missing audio, too."""
        if self._next_sample + gap > self.start * self.rate:
            self._lost_samples += abs(gap)
        if limits.is_too_much_missing(self._lost_samples / self.rate, math.inf):
            raise MediaError(
                f"{self.path}: {self._lost_samples / self.rate:.2f} s of audio are missing before "
                f"{(self._next_sample + gap) / self.rate:.2f} s; fetch the file again"
            )
        if gap > 0:
            self._chunks.append(np.zeros(gap, np.float32))
            self._next_sample += gap

    def _snap_to_grid(self, sample_index: int) -> int:
        """Round a sample position to the frame grid, because timestamps in milliseconds are too coarse for samples."""
        if self.frame_grid is None:
            return sample_index
        phase, step = self.frame_grid
        return phase + round((sample_index - phase) / step) * step


def _estimate_frame_grid(
    file: InputContainer, stream: AudioStream, deadline: limits.Deadline
) -> tuple[int, int] | None:
    """Return the frame grid (first, step) in samples of a file with timestamps coarser than one sample."""
    frames: list[AudioFrame] = []
    for packet in container.iter_packets(file, deadline, stream):
        frames += _decode_packet(packet) or ()
        if len(frames) >= GRID_FRAMES:
            break
    untrimmed = frames[1:-1]  # the first frame may be trimmed, and in a short file the last frame
    if not untrimmed or stream.time_base is None or stream.time_base * frames[0].sample_rate <= 1:
        return None
    rate, stamp = frames[0].sample_rate, frames[0].pts or 0
    first = round((float(stamp * stream.time_base) - container.start_time(file)) * rate)
    step = VORBIS_GRID if stream.codec_context.name == "vorbis" else math.gcd(*(frame.samples for frame in untrimmed))
    is_finer = step < 2 * stream.time_base * rate
    return None if is_finer else (max(0, first) + frames[0].samples, step)


def _decode_packet(packet: av.Packet) -> list[AudioFrame] | None:
    """Return the frames of a packet; None if the packet is damaged."""
    try:
        return [frame for frame in packet.decode() if isinstance(frame, AudioFrame) and frame.samples]
    except FFmpegError:
        return None


def _to_mono(frame: AudioFrame) -> np.ndarray:
    """Return the mean of a frame's channels as float32 within ±1."""
    data: np.ndarray = frame.to_ndarray()
    channels = frame.layout.nb_channels
    if data.dtype == np.uint8:
        data = (data.astype(np.float32) - 128) / 128
    elif np.issubdtype(data.dtype, np.signedinteger):
        data = data.astype(np.float32) / 2.0 ** (8 * data.dtype.itemsize - 1)
    if not frame.format.is_planar:
        data = data.reshape(-1, channels).T
    with np.errstate(invalid="ignore", over="ignore"):  # audio.read raises for NaN and infinity
        return (data[0] if channels == 1 else data.mean(axis=0)).astype(np.float32, copy=False)
