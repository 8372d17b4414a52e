"""Open media containers (m4a, mp4, mkv, webm, mov …) with PyAV: only local files in allowed formats, no log output."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import av
import av.logging
from av import Packet
from av.container import InputContainer
from av.stream import Disposition, Stream

from triptych.errors import MediaError, TriptychError
from triptych.media.limits import Deadline

# Playlists (hls, dash, concat) and protocols other than `file` would open other files and URLs.
ALLOWED_DEMUXERS = (
    "mov,matroska,webm,avi,asf,flv,mpeg,mpegts,ogg,aac,ac3,eac3,mp3,flac,wav,w64,aiff,caf,au,amr,ape,wv,tta,loas,latm"
)
# For these formats, FFmpeg estimates the duration from the bit rate of the first packets.
FORMATS_WITHOUT_DURATION = frozenset({"aac", "ac3", "eac3", "amr", "loas", "latm"})
SUPPORTED_FORMATS = "mp4, mov, mkv, webm or avi"

av.logging.set_level(None)


@contextmanager
def open_container(path: Path, media_type: str, supported_formats: str = SUPPORTED_FORMATS) -> Iterator[InputContainer]:
    """Open a container and close it on exit. All errors become a MediaError that names the file."""
    options = {"protocol_whitelist": "file", "format_whitelist": ALLOWED_DEMUXERS}
    try:
        # Without the prefix `file:`, FFmpeg would take file names such as `concat:a.mp4` for URLs.
        file = av.open(f"file:{path}", container_options=options, metadata_errors="replace", timeout=30.0)
    except Exception as error:  # PyAV raises many types of exceptions, such as IndexError
        reason = _describe_error(error)
        raise MediaError(f"{path}: cannot be read as {media_type} ({reason}); give {supported_formats}") from error
    with file:
        try:
            yield file
        except TriptychError:
            raise
        except Exception as error:
            raise MediaError(f"{path}: broken data ({_describe_error(error)}); replace or remove the file") from error


def select_stream(file: InputContainer, stream_type: Literal["audio", "video"]) -> Stream | None:
    """Return the best stream of a type; None if the file has no such stream. Cover art is not a video stream."""
    candidates = [s for s in file.streams if s.type == stream_type and not s.disposition & Disposition.attached_pic]
    best = file.streams.best(stream_type) if candidates else None
    stream = best if best in candidates else next(iter(candidates), None)
    if stream is None or stream.codec_context is None:  # no stream, or an unknown codec
        return None
    stream.codec_context.thread_count = 1  # several files are decoded in parallel already
    return stream


def iter_packets(file: InputContainer, deadline: Deadline, *streams: Stream) -> Iterator[Packet]:
    """Yield the packets of the given streams, or of all streams if none is given; raise after the deadline."""
    for packet in file.demux(*streams):
        deadline.check()
        yield packet


def start_time(file: InputContainer) -> float:
    """Return the file's first timestamp in seconds."""
    return (file.start_time or 0) / av.time_base


def header_duration(path: Path, file: InputContainer) -> float | None:
    """Return the duration in seconds from the header; None if the header has no duration."""
    name = file.format.name
    is_estimate = name in FORMATS_WITHOUT_DURATION or (name == "mp3" and not _has_frame_count(path))
    if is_estimate or not file.duration or file.duration < 0:
        return None
    return file.duration / av.time_base * (_compute_avi_duration_scale(path) if name == "avi" else 1.0)


def read_duration(path: Path, file: InputContainer) -> float:
    """Return the duration in seconds, from the header or by demuxing the whole file."""
    header_seconds = header_duration(path, file)
    if header_seconds is not None:
        return header_seconds
    last_end = 0.0
    for packet in iter_packets(file, Deadline(path)):
        if packet.pts is not None and packet.time_base is not None:
            last_end = max(last_end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    return max(0.0, last_end - start_time(file))


def _compute_avi_duration_scale(path: Path) -> float:
    """Return the factor from FFmpeg's duration of an avi file to the duration in the header; above 1 if truncated.

    For a truncated avi file, FFmpeg multiplies the duration by actual size / size in the header.
    """
    with path.open("rb") as data:
        header_size = 8 + int.from_bytes(data.read(8)[4:], "little")
    return max(1.0, header_size / path.stat().st_size)


def _has_frame_count(path: Path) -> bool:
    """Return whether an mp3 starts with a Xing, Info or VBRI frame, which states the number of frames."""
    with path.open("rb") as data:
        head = data.read(10)
        if head[:3] == b"ID3":
            a, b, c, d = head[6:10].ljust(4, b"\0")  # a syncsafe integer: seven bits per byte
            data.seek(10 + (a << 21 | b << 14 | c << 7 | d))
        first = data.read(4096)
    return any(mark in first for mark in (b"Xing", b"Info", b"VBRI"))


def _describe_error(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
