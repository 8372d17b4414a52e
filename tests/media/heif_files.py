"""Write HEIC files: an HEVC frame in a HEIF container. pi-heif only reads them."""

import io
import struct
from pathlib import Path

import av
from PIL import Image

ITEM_ID = 1


def save_heic(pil_image: Image.Image, path: Path) -> None:
    """Encode an image as one HEVC frame, and write it as the only item of a HEIF file."""
    movie = _encode_movie(pil_image)
    config, frame = _find_box(movie, b"hvcC"), _find_box(movie, b"mdat")[8:]
    size = _full_box(b"ispe", 0, struct.pack(">II", *pil_image.size))
    properties = _box(
        b"iprp", _box(b"ipco", config + size) + _full_box(b"ipma", 0, struct.pack(">IHBBB", 1, 1, 2, 0x81, 2))
    )
    entry = _full_box(b"infe", 2, struct.pack(">HH4sB", ITEM_ID, 0, b"hvc1", 0))
    items = _full_box(b"iinf", 0, struct.pack(">H", 1) + entry)
    handler = _full_box(b"hdlr", 0, struct.pack(">I4s12sB", 0, b"pict", b"", 0))
    primary = _full_box(b"pitm", 0, struct.pack(">H", ITEM_ID))
    header = _box(b"ftyp", b"heic\0\0\0\0mif1heic")

    def make_meta(offset: int) -> bytes:
        location = struct.pack(">BBHHHHII", 0x44, 0, 1, ITEM_ID, 0, 1, offset, len(frame))
        return _full_box(b"meta", 0, handler + primary + _full_box(b"iloc", 0, location) + items + properties)

    meta = make_meta(len(header) + len(make_meta(0)) + 8)
    path.write_bytes(header + meta + _box(b"mdat", frame))


def _encode_movie(pil_image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx265", rate=1, options={"crf": "4", "x265-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = *pil_image.size, "yuv420p"
        for packet in [*stream.encode(av.VideoFrame.from_image(pil_image)), *stream.encode()]:
            packet.pts = packet.dts = 0  # x265 may leave them unset, which the container refuses
            container.mux(packet)
    return buffer.getvalue()


def _find_box(content: bytes, kind: bytes) -> bytes:
    start = content.index(kind) - 4
    return content[start : start + int.from_bytes(content[start : start + 4], "big")]


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def _full_box(kind: bytes, version: int, content: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24) + content)
