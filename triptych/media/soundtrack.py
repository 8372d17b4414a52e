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
JUMP = 0.05  # seconds by which time stamps may waver before they mean a gap
LATEST = 600.0  # seconds: no sound begins later than this after its pictures
GRACE = 0.1  # seconds that codecs with long frames may lack at the end
MANY = 8  # channels from which PyAV reads past the end of a planar frame; packed into one plane they are safe
LEARNT = 8  # frames from which the grid of frames is learnt
VORBIS_GRID = 64  # samples: Vorbis frames vary, but begin at multiples of this


def read(path: Path, start: float, end: float, readable: str) -> tuple[np.ndarray, int]:
    """Mono float32 between start and end (seconds) at the file's own rate, and that rate; empty past the end."""
    with container.opened(path, "sound", readable) as file:
        stream = _stream(path, file, readable)
        origin, deadline = container.origin(file), limits.Deadline(path)
        timeline = Timeline(path, start, end)
        if start > 0:
            timeline.grid = _learn_grid(file, stream, deadline)
            _rewind(file, stream, start, deadline)
        reached = audible = 0.0  # where the packets of any stream, and of the sound, end
        for packet in container.packets(file, deadline):
            is_ours, last = packet.stream_index == stream.index, math.inf
            if packet.pts is not None and packet.time_base is not None:
                first = float(packet.pts * packet.time_base) - origin
                last = first + float((packet.duration or 0) * packet.time_base)
                reached = max(reached, last)
                if is_ours:
                    audible = last
                    timeline.expect(first)
            if is_ours and last >= start - PREROLL:
                timeline.take(packet, origin)
                if timeline.is_full:
                    return timeline.samples(end), timeline.rate
        claimed = container.claimed(path, file)
        if claimed is not None:
            limits.check_whole(path, reached, claimed, GRACE)
        if not timeline.rate and audible > start:
            raise MediaError(f"{path}: no sound could be decoded; replace the file or leave it out")
        return timeline.samples(audible), timeline.rate or 1


def duration(path: Path, readable: str) -> float:
    """Seconds of the whole file, by its header where that tells."""
    with container.opened(path, "sound", readable) as file:
        _stream(path, file, readable)
        return container.duration(path, file)


def _stream(path: Path, file: InputContainer, readable: str) -> AudioStream:
    stream = container.track(file, "audio")
    if not isinstance(stream, AudioStream):
        raise MediaError(f"{path}: has no sound in it that we can read; give {readable}")
    return stream


def _rewind(file: InputContainer, stream: AudioStream, start: float, deadline: limits.Deadline) -> None:
    """Go to a little before start, or to the beginning where the file's index leads past it."""
    origin = container.origin(file)
    target = max(0.0, start - PREROLL)
    file.seek(math.floor((target + origin) * av.time_base))
    stamp = next((p.pts for p in container.packets(file, deadline, stream) if p.pts is not None), None)
    landed = math.inf if stamp is None or stream.time_base is None else float(stamp * stream.time_base) - origin
    file.seek(math.floor(((target if landed < start - JUMP else 0.0) + origin) * av.time_base))


class Timeline:
    """Decoded frames in their places: sample 0 is the file's start."""

    def __init__(self, path: Path, start: float, end: float) -> None:
        self.path, self.start, self.end = path, start, end
        self.rate = 0
        self.grid: tuple[int, int] | None = None
        self._begin: float | None = None  # seconds: where the first packet says the sound begins
        self._next = 0  # the place of the next sample
        self._lost = 0  # samples that should be there and are not
        self._packer = av.AudioResampler(format="flt")  # of the format alone: rate and channels stay
        self._bytes = self._broken = 0  # of packets, and of those that could not be decoded
        self._pieces: list[np.ndarray] = []
        self._first = 0  # the place of the first sample kept

    @property
    def is_full(self) -> bool:
        """Whether the end that was asked for is reached."""
        return self.rate > 0 and self._next >= self.end * self.rate

    def expect(self, first: float) -> None:
        """Note where a packet begins; if the first ones cannot be decoded, that much is lost."""
        if self._begin is None:
            self._begin = max(0.0, first)

    def take(self, packet: av.Packet, origin: float) -> None:
        """Decode a packet and lay its frames; a damaged one leaves a gap, and its bytes are counted."""
        frames = _decoded(packet)
        self._bytes += packet.size
        self._broken += 0 if frames is not None else packet.size
        for frame in frames or ():
            self._lay(frame, origin)

    def _lay(self, frame: AudioFrame, origin: float) -> None:
        """Put a frame where its time stamp says, or after the one before where that is nearly the same."""
        if not self.rate:
            self._open(frame)
        elif frame.sample_rate != self.rate:
            raise MediaError(f"{self.path}: changes its sample rate on the way; export the file again")
        if frame.pts is not None and frame.time_base is not None:
            gap = round((float(frame.pts * frame.time_base) - origin) * self.rate) - self._next
            if not self._pieces and self.start > 0:
                self._next = self._first = self._snapped(self._next + gap)
            elif abs(gap) > JUMP * self.rate:
                self._skip(gap)
        limits.check_samples(self.path, self._next + frame.samples - self._first)
        many = frame.format.is_planar and frame.layout.nb_channels >= MANY
        samples = np.concatenate([_mono(piece) for piece in (self._packer.resample(frame) if many else [frame])])
        self._pieces.append(samples)
        self._next += len(samples)

    def samples(self, audible: float) -> np.ndarray:
        """What was asked for, unless too much of it is lost; `audible` is where the sound should end."""
        if not self.rate:
            return np.zeros(0, np.float32)
        begin, stop = max(self.start, self._begin or 0.0), min(audible, self.end)
        lost = self._lost / self.rate + max(0.0, stop - self._next / self.rate)
        lost += max(0.0, self._first / self.rate - begin) if self.start else 0.0
        if self._broken > limits.LOST_SHARE * self._bytes:  # raw streams have no clock that would show it
            lost = max(lost, self._broken / self._bytes * (self._next / self.rate - self.start) + GRACE)
        if limits.is_lost(lost, max(stop - self.start, 0.0), GRACE):
            raise MediaError(f"{self.path}: {lost:.2f} s of sound are damaged or missing; fetch the file again")
        first = round(self.start * self.rate)
        last = self._next if math.isinf(self.end) else min(self._next, round(self.end * self.rate))
        silence = np.zeros(min(max(0, self._first - first), max(0, last - first)), np.float32)
        whole = np.concatenate([silence, *self._pieces])
        return whole[max(0, first - self._first) :][: max(0, last - first)]

    def _open(self, frame: AudioFrame) -> None:
        """Learn the rate from the first frame: headers of some codecs tell half of it."""
        self.rate, channels = frame.sample_rate, frame.layout.nb_channels
        limits.check_sound(self.path, self.rate, channels)
        if (self._begin or 0.0) - self.start > LATEST:
            raise MediaError(f"{self.path}: its sound begins after {self._begin:.0f} s; fetch the file again")
        self._next = self._first = round((self._begin or 0.0) * self.rate)
        if not self.start and self._next:  # the sound begins after the pictures do
            self._first = 0
            self._pieces.append(np.zeros(self._next, np.float32))

    def _skip(self, gap: int) -> None:
        """Keep to the clock over a gap; stamps that go back are a sign of damage too, and count as loss."""
        if self._next + gap > self.start * self.rate:
            self._lost += abs(gap)
        if limits.is_lost(self._lost / self.rate, math.inf):
            raise MediaError(
                f"{self.path}: {self._lost / self.rate:.2f} s of sound are missing before "
                f"{(self._next + gap) / self.rate:.2f} s; fetch the file again"
            )
        if gap > 0:
            self._pieces.append(np.zeros(gap, np.float32))
            self._next += gap

    def _snapped(self, place: int) -> int:
        """Milliseconds are too coarse for samples; frames begin on a grid, which tells the exact place."""
        if self.grid is None:
            return place
        phase, step = self.grid
        return phase + round((place - phase) / step) * step


def _learn_grid(file: InputContainer, stream: AudioStream, deadline: limits.Deadline) -> tuple[int, int] | None:
    """Where frames begin, as (first, step) in samples, of a file whose clock is coarser than its samples."""
    frames: list[AudioFrame] = []
    for packet in container.packets(file, deadline, stream):
        frames += _decoded(packet) or ()
        if len(frames) >= LEARNT:
            break
    whole = frames[1:-1]  # the first may be trimmed; the last may be too, in a short file
    if not whole or stream.time_base is None or stream.time_base * frames[0].sample_rate <= 1:
        return None
    rate, stamp = frames[0].sample_rate, frames[0].pts or 0
    first = round((float(stamp * stream.time_base) - container.origin(file)) * rate)
    step = VORBIS_GRID if stream.codec_context.name == "vorbis" else math.gcd(*(frame.samples for frame in whole))
    is_finer = step < 2 * stream.time_base * rate
    return None if is_finer else (max(0, first) + frames[0].samples, step)


def _decoded(packet: av.Packet) -> list[AudioFrame] | None:
    """The frames of a packet; None of a damaged one."""
    try:
        return [frame for frame in packet.decode() if isinstance(frame, AudioFrame) and frame.samples]
    except FFmpegError:
        return None


def _mono(frame: AudioFrame) -> np.ndarray:
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
