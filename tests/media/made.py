"""Files the tests make themselves: sounds and films through real encoders, and ways to damage them."""

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

# ending -> codecs an encoder is at hand for; soundfile writes the first group, PyAV the second.
PLAIN = {"wav": "PCM_16", "flac": "PCM_16", "ogg": "VORBIS", "opus": "OPUS", "mp3": "MPEG_LAYER_III", "aiff": "PCM_16"}
PLAIN |= {"au": "PCM_16", "caf": "PCM_16", "w64": "PCM_16"}
CONTAINED = {"m4a": "aac", "mp4": "aac", "mov": "aac", "aac": "aac", "mkv": "libopus", "webm": "libopus"}
CONTAINED |= {"mka": "flac", "avi": "libmp3lame", "m2ts": "aac", "ac3": "ac3", "wv": "wavpack", "tta": "tta"}
FPS = 10
FILMS = {"mp4": ("libx264", "aac"), "mkv": ("libx264", "libopus"), "webm": ("libvpx", "libopus")}
FILMS |= {"mov": ("mpeg4", "aac"), "avi": ("mpeg4", "libmp3lame"), "m4v": ("libx264", "aac")}


def noise(seconds: float, rate: int, seed: int = 0) -> np.ndarray:
    """Noise between 200 Hz and 3 kHz: no two moments alike, and every codec keeps it."""
    length = round(seconds * rate)
    size = 1 << length.bit_length()
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=size))
    hertz = np.fft.rfftfreq(size, 1 / rate)
    found = np.fft.irfft(np.where((hertz > 200) & (hertz < 3000), spectrum, 0), size)[:length]
    return (0.5 * found / np.abs(found).max()).astype(np.float32)


def alike(found: np.ndarray, wanted: np.ndarray) -> tuple[float, int]:
    """The correlation of two sounds at the shift that fits best, and that shift in samples."""
    size = 1 << (2 * max(len(found), len(wanted))).bit_length()
    products = np.fft.irfft(np.fft.rfft(found, size) * np.conj(np.fft.rfft(wanted, size)), size)
    shift = int(np.argmax(products))
    return float(products[shift] / np.sqrt((found**2).sum() * (wanted**2).sum())), shift - size * (shift > size // 2)


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference of two sounds; infinite where one is longer."""
    return float(np.abs(found - wanted).max()) if len(found) == len(wanted) else np.inf


def save_sound(
    path: Path, samples: np.ndarray, rate: int, codec: str | None = None, channels: int = 1, options: dict | None = None
) -> Path:
    """Samples (n,), the same in every channel, encoded as the ending says or with a codec."""
    ending = path.suffix[1:]
    if codec is None and ending in PLAIN:
        fmt = "OGG" if ending == "opus" else None
        soundfile.write(path, np.repeat(samples[:, None], channels, 1), rate, subtype=PLAIN[ending], format=fmt)
        return path
    with av.open(str(path), "w", format=MUXERS.get(ending), options=options or {}) as file:
        write_sound = write_sound_into(file, codec or CONTAINED[ending], rate, channels)
        write_sound(samples)
        write_sound(None)
    return path


def save_film(path: Path, seconds: float = 4.0, size: tuple[int, int] = (64, 48), sound: bool = True) -> Path:
    """Frame i is as bright as `brightness(i)`, its left half red; the sound is `noise` at 48 kHz."""
    (pictures, codec), fps = FILMS[path.suffix[1:]], FPS
    with av.open(str(path), "w") as file:
        stream = file.add_stream(pictures, rate=fps, options={"crf": "10"} if pictures == "libx264" else {})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", 15
        stream.bit_rate = 1_000_000  # enough for every step of brightness to show
        write_sound = write_sound_into(file, codec, 48_000, 1) if sound else lambda samples: None
        samples, share = noise(seconds, 48_000), 48_000 // fps
        for i in range(round(seconds * fps)):
            pixels = np.zeros((size[1], size[0], 3), np.uint8)
            pixels[:, : size[0] // 2, 0] = pixels[:, size[0] // 2 :] = brightness(i)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = i, Fraction(1, fps)
            file.mux(stream.encode(frame))
            write_sound(samples[i * share : (i + 1) * share])
        file.mux(stream.encode(None))
        write_sound(None)
    return path


def flash_film(late_stream: bool | None = None) -> bytes:
    """A tiny FLV; or one in which a stream appears that its header does not announce: late, or at once."""
    file_data = io.BytesIO()
    with av.open(file_data, "w", format="flv") as file:
        stream = file.add_stream("flv", rate=10)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        write_sound, samples = write_sound_into(file, "libmp3lame", 44_100, 1), noise(0.5, 44_100)
        for i in range(5):
            pixels = np.full((32, 32, 3), 20 * i, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts = i
            file.mux(stream.encode(frame))
            write_sound(samples[i * 4410 : (i + 1) * 4410])
        file.mux(stream.encode(None))
        write_sound(None)
    data, tags, place = bytearray(file_data.getvalue()), list[int](), 13
    while place + 11 <= len(data):  # a tag: its kind, its length, its time, its data, its length again
        tags.append(place)
        place += 11 + int.from_bytes(data[place + 1 : place + 4], "big") + 4
    pictures = [tag for tag in tags if data[tag] == 9]
    if late_stream:
        last = pictures[3]
        data[last + 11] = 0x08  # of another code than the ones before
        after = next(tag for tag in tags[tags.index(last) + 2 :] if data[tag] == 8)
        data[after + 2] = 0xFF  # so long that reading ahead stops here
    elif late_stream is False:
        data[pictures[0]] = 18  # data, not pictures
    return bytes(data)


def slow_picture(side: int = 6000, scans: int = 2000) -> bytes:
    """A JPEG whose last pass over all its pixels comes many times: minutes of work in a few bytes for each."""
    data = io.BytesIO()
    Image.new("L", (side, side)).save(data, "JPEG", progressive=True, quality=50)
    whole = data.getvalue()
    scan, end = whole[whole.rindex(b"\xff\xda") : -2], whole[-2:]
    return whole[:-2] + scan * scans + end


def mp3_in_wav(mp3: bytes, rate: int) -> bytes:
    """A WAV that holds an mp3."""
    fmt = struct.pack("<HHIIHHHHIHHH", 0x55, 1, rate, 8000, 1, 0, 12, 1, 2, 417, 1, 1393)
    chunks = [(b"JUNK", bytes(3)), (b"fmt ", fmt), (b"fact", struct.pack("<I", rate)), (b"data", mp3)]
    body = b"WAVE" + b"".join(n + struct.pack("<I", len(c)) + c + bytes(len(c) % 2) for n, c in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def brightness(i: int) -> int:
    """Neighbouring frames differ by 4 steps of 255, and start again after 50."""
    return 40 + 4 * (i % 50)


def number_of(picture) -> int:
    """Which of the first 50 frames a picture is, by its brightness on the right."""
    pixels = np.asarray(picture).astype(float)
    return round((pixels[:, -pixels.shape[1] // 4 :].mean() - 40) / 4)


def turned(path: Path) -> Path:
    """The same mp4 with a header that says: shown turned a quarter to the right, as telephones write it."""
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 4 + 40  # version 0: the matrix stands after 40 bytes
    data[place : place + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    found = path.with_name(f"turned_{path.name}")
    found.write_bytes(data)
    return found


def damaged(data: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Files that once were whole: (what was done, bytes), the same for the same seed."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        way = DAMAGE[i % len(DAMAGE)]
        yield f"{way.__name__} {i}", bytes(way(bytearray(data), rng))


def cut(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Ends anywhere."""
    return data[: rng.integers(1, len(data))]


def flipped(data: bytearray, rng: np.random.Generator) -> bytearray:
    """One bit in every 4,000 is wrong."""
    for place in rng.integers(0, len(data), 1 + len(data) // 500):
        data[place] ^= 1 << rng.integers(8)
    return data


def zeroed(data: bytearray, rng: np.random.Generator) -> bytearray:
    """A third of the file, or what follows, was never written."""
    start = rng.integers(0, len(data) - 1)
    hole = slice(start, start + len(data) // 3)
    data[hole] = bytes(len(data[hole]))
    return data


def boasting(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Four bytes of the header are a huge number."""
    start = int(rng.integers(4, min(400, len(data) - 8)))
    data[start : start + 4] = b"\x7f\xff\xff\xf0" if rng.integers(2) else b"\xff\xff\xff\x7f"
    return data


def header_only(data: bytearray, rng: np.random.Generator) -> bytearray:
    """A header and nothing else."""
    return data[: rng.integers(8, 120)]


DAMAGE = (cut, flipped, zeroed, boasting, header_only)


def write_sound_into(file, codec: str, rate: int, channels: int) -> Callable[[np.ndarray | None], None]:
    """A function that encodes samples as they come, and None for the end."""
    stream = file.add_stream(codec, rate=rate)
    stream.layout = LAYOUTS[channels]
    stream.bit_rate = 64_000 * channels
    context, place = stream.codec_context, [0]
    context.open()
    resampler = av.AudioResampler(context.format, context.layout, rate, context.frame_size or 1024)

    def write(samples: np.ndarray | None) -> None:
        frame = None
        if samples is not None:
            packed = np.repeat(samples.astype(np.float32), channels)[None]
            frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=LAYOUTS[channels])
            frame.sample_rate, frame.pts, frame.time_base = rate, place[0], Fraction(1, rate)
            place[0] += len(samples)
        for piece in resampler.resample(frame):
            file.mux(stream.encode(piece))
        if samples is None:
            file.mux(stream.encode(None))

    return write
