"""Files for tests: audio and video written by real encoders, and ways to damage them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from av.video import VideoStream
from PIL import Image

LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
MUXERS = {"aac": "adts", "m4b": "mp4", "mka": "matroska", "weba": "webm", "m2ts": "mpegts", "wma": "asf"}

# Extensions and codecs; soundfile writes the first group, PyAV the second.
SNDFILE_CODECS = {
    "wav": "PCM_16",
    "flac": "PCM_16",
    "ogg": "VORBIS",
    "opus": "OPUS",
    "mp3": "MPEG_LAYER_III",
    "aiff": "PCM_16",
}
SNDFILE_CODECS |= {"au": "PCM_16", "caf": "PCM_16", "w64": "PCM_16"}
PYAV_CODECS = {"m4a": "aac", "mp4": "aac", "mov": "aac", "aac": "aac", "mkv": "libopus", "webm": "libopus"}
PYAV_CODECS |= {"mka": "flac", "avi": "libmp3lame", "m2ts": "aac", "ac3": "ac3", "wv": "wavpack", "tta": "tta"}
FPS = 10
VIDEO_CODECS = {"mp4": ("libx264", "aac"), "mkv": ("libx264", "libopus"), "webm": ("libvpx", "libopus")}
VIDEO_CODECS |= {"mov": ("mpeg4", "aac"), "avi": ("mpeg4", "libmp3lame"), "m4v": ("libx264", "aac")}


def noise(seconds: float, rate: int, seed: int = 0) -> np.ndarray:
    """Noise between 200 Hz and 3 kHz: no two segments are alike, and every codec preserves it."""
    length = round(seconds * rate)
    size = 1 << length.bit_length()
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=size))
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    samples = np.fft.irfft(np.where((frequencies > 200) & (frequencies < 3000), spectrum, 0), size)[:length]
    return (0.5 * samples / np.abs(samples).max()).astype(np.float32)


def best_correlation(actual: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Return the largest correlation of two signals over all shifts, and its shift in samples."""
    size = 1 << (2 * max(len(actual), len(expected))).bit_length()
    products = np.fft.irfft(np.fft.rfft(actual, size) * np.conj(np.fft.rfft(expected, size)), size)
    shift = int(np.argmax(products))
    return float(products[shift] / np.sqrt((actual**2).sum() * (expected**2).sum())), shift - size * (shift > size // 2)


def max_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of two signals; infinity if their lengths differ."""
    return float(np.abs(actual - expected).max()) if len(actual) == len(expected) else np.inf


def save_audio(
    path: Path, samples: np.ndarray, rate: int, codec: str | None = None, channels: int = 1, options: dict | None = None
) -> Path:
    """Encode samples (n,), equal in every channel, by the extension or with a codec."""
    extension = path.suffix[1:]
    if codec is None and extension in SNDFILE_CODECS:
        fmt = "OGG" if extension == "opus" else None
        soundfile.write(
            path, np.repeat(samples[:, None], channels, 1), rate, subtype=SNDFILE_CODECS[extension], format=fmt
        )
        return path
    with av.open(str(path), "w", format=MUXERS.get(extension), options=options or {}) as file:
        write_samples = add_audio_stream(file, codec or PYAV_CODECS[extension], rate, channels)
        write_samples(samples)
        write_samples(None)
    return path


def save_video(path: Path, seconds: float = 4.0, size: tuple[int, int] = (64, 48), with_audio: bool = True) -> Path:
    """Write a video: frame i has brightness(i), its left half is red; the audio is `noise` at 48 kHz."""
    (video_codec, audio_codec), fps = VIDEO_CODECS[path.suffix[1:]], FPS
    with av.open(str(path), "w") as file:
        stream = file.add_stream(video_codec, rate=fps, options={"crf": "10"} if video_codec == "libx264" else {})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 15
        stream.bit_rate = 1_000_000  # enough to preserve every step of brightness
        write_samples = add_audio_stream(file, audio_codec, 48_000, 1) if with_audio else lambda samples: None
        samples, samples_per_frame = noise(seconds, 48_000), 48_000 // fps
        for i in range(round(seconds * fps)):
            pixels = np.zeros((size[1], size[0], 3), np.uint8)
            pixels[:, : size[0] // 2, 0] = pixels[:, size[0] // 2 :] = brightness(i)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            file.mux(stream.encode(frame))
            write_samples(samples[i * samples_per_frame : (i + 1) * samples_per_frame])
        file.mux(stream.encode(None))
        write_samples(None)
    return path


def make_flv(late_stream: bool | None = None) -> bytes:
    """Return a tiny FLV; with `late_stream`, one with a stream missing from its header: late, or at once."""
    file_data = io.BytesIO()
    with av.open(file_data, "w", format="flv") as file:
        stream = file.add_stream("flv", rate=10)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        write_samples, samples = add_audio_stream(file, "libmp3lame", 44_100, 1), noise(0.5, 44_100)
        for i in range(5):
            pixels = np.full((32, 32, 3), 20 * i, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts = i
            file.mux(stream.encode(frame))
            write_samples(samples[i * 4410 : (i + 1) * 4410])
        file.mux(stream.encode(None))
        write_samples(None)
    data, tags, offset = bytearray(file_data.getvalue()), list[int](), 13
    while offset + 11 <= len(data):  # a tag: type, length, timestamp, data, length again
        tags.append(offset)
        offset += 11 + int.from_bytes(data[offset + 1 : offset + 4], "big") + 4
    video_tags = [tag for tag in tags if data[tag] == 9]
    if late_stream:
        last = video_tags[3]
        data[last + 11] = 0x08  # another codec than before
        after = next(tag for tag in tags[tags.index(last) + 2 :] if data[tag] == 8)
        data[after + 2] = 0xFF  # long enough to end probing here
    elif late_stream is False:
        data[video_tags[0]] = 18  # data, not video
    return bytes(data)


def make_slow_jpeg(side: int = 6000, scans: int = 2000) -> bytes:
    """Return a progressive JPEG that repeats its last scan: minutes of decoding in a small file."""
    data = io.BytesIO()
    Image.new("L", (side, side)).save(data, "JPEG", progressive=True, quality=50)
    jpeg = data.getvalue()
    scan, end = jpeg[jpeg.rindex(b"\xff\xda") : -2], jpeg[-2:]
    return jpeg[:-2] + scan * scans + end


def wrap_mp3_in_wav(mp3: bytes, rate: int) -> bytes:
    """Return a WAV file that contains an mp3."""
    fmt = struct.pack("<HHIIHHHHIHHH", 0x55, 1, rate, 8000, 1, 0, 12, 1, 2, 417, 1, 1393)
    chunks = [(b"JUNK", bytes(3)), (b"fmt ", fmt), (b"fact", struct.pack("<I", rate)), (b"data", mp3)]
    body = b"WAVE" + b"".join(n + struct.pack("<I", len(c)) + c + bytes(len(c) % 2) for n, c in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def brightness(i: int) -> int:
    """Return the brightness of frame i: in steps of 4 of 255, repeating after 50 frames."""
    return 40 + 4 * (i % 50)


def frame_number(pil_image) -> int:
    """Return which of the first 50 frames an image is, by the brightness of its right half."""
    pixels = np.asarray(pil_image).astype(float)
    return round((pixels[:, -pixels.shape[1] // 4 :].mean() - 40) / 4)


def save_rotated_copy(path: Path) -> Path:
    """Copy an mp4 with a header that rotates it by 90° clockwise, as phones write it."""
    data = bytearray(path.read_bytes())
    offset = data.index(b"tkhd") + 4 + 40  # version 0: the matrix is at byte 40
    data[offset : offset + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    copy = path.with_name(f"turned_{path.name}")
    copy.write_bytes(data)
    return copy


def corrupt_copies(data: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield (name of the corruption, corrupted bytes), reproducible by seed."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        corrupt = CORRUPTIONS[i % len(CORRUPTIONS)]
        yield f"{corrupt.__name__} {i}", bytes(corrupt(bytearray(data), rng))


def truncate(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Cut the file at a random position."""
    return data[: rng.integers(1, len(data))]


def flip_bits(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Flip one of every 4,000 bits."""
    for offset in rng.integers(0, len(data), 1 + len(data) // 500):
        data[offset] ^= 1 << rng.integers(8)
    return data


def zero_range(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Zero a third of the file, or what remains."""
    start = rng.integers(0, len(data) - 1)
    hole = slice(start, start + len(data) // 3)
    data[hole] = bytes(len(data[hole]))
    return data


def inflate_header_value(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Replace four bytes of the header by a huge number."""
    start = int(rng.integers(4, min(400, len(data) - 8)))
    data[start : start + 4] = b"\x7f\xff\xff\xf0" if rng.integers(2) else b"\xff\xff\xff\x7f"
    return data


def keep_header_only(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Drop everything after the header."""
    return data[: rng.integers(8, 120)]


CORRUPTIONS = (truncate, flip_bits, zero_range, inflate_header_value, keep_header_only)


def add_audio_stream(file, codec: str, rate: int, channels: int) -> Callable[[np.ndarray | None], None]:
    """Add an audio stream; return a function that encodes samples, and flushes on None."""
    stream = file.add_stream(codec, rate=rate)
    stream.layout = LAYOUTS[channels]
    stream.bit_rate = 64_000 * channels
    context, position = stream.codec_context, [0]
    context.open()
    resampler = av.AudioResampler(context.format, context.layout, rate, context.frame_size or 1024)

    def write(samples: np.ndarray | None) -> None:
        frame = None
        if samples is not None:
            packed = np.repeat(samples.astype(np.float32), channels)[None]
            frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=LAYOUTS[channels])
            frame.sample_rate, frame.pts, frame.time_base = rate, position[0], Fraction(1, rate)
            position[0] += len(samples)
        for piece in resampler.resample(frame):
            file.mux(stream.encode(piece))
        if samples is None:
            file.mux(stream.encode(None))

    return write
