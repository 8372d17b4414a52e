"""Pictures and sounds made small enough to live inside a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import soundfile

from triptych.errors import MediaError
from triptych.interfaces import Source
from triptych.media import audio, image

MAX_SIDE = 192  # pixels of the longer side
MAX_SECONDS, SAMPLE_RATE, FADE_SECONDS = 6.0, 22_050, 0.02
MAX_BYTES = 12_000_000  # bytes of all that is inlined into a page


class MediaInliner:
    """Sources as data: addresses, each made once, until a page has as much as it should carry."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.remaining_bytes = max_bytes
        self.num_omitted = 0
        self._data_uris: dict[Source, str | None] = {}

    def data_uri(self, source: Source) -> str | None:
        """What to put into src=; None where the file cannot be read or the page is full."""
        if source not in self._data_uris:
            self._data_uris[source] = self._encode(source)
        uri = self._data_uris[source]
        if uri is None or len(uri) > self.remaining_bytes:
            self.num_omitted += 1
            return None
        self.remaining_bytes -= len(uri)
        return uri

    def _encode(self, source: Source) -> str | None:
        try:
            return encode_image(source) if source.modality == "image" else encode_audio(source)
        except MediaError:
            return None  # it was read when it was embedded; if it has gone since, its name is left


def encode_image(source: Source, max_side: int = MAX_SIDE) -> str:
    """A picture as JPEG; small ones with few colours stay as they are, as PNG."""
    thumbnail = image.load(Path(source.content), max_side, image.frame_time(source))
    thumbnail.thumbnail((max_side, max_side))
    candidates = []
    for image_format, settings in (("JPEG", {"quality": 82}), ("PNG", {"optimize": True})):
        buffer = io.BytesIO()
        thumbnail.save(buffer, image_format, **settings)
        candidates.append((len(buffer.getvalue()), image_format, buffer.getvalue()))
    _, image_format, data = min(candidates)
    return _make_data_uri(f"image/{image_format.lower()}", data)


def encode_audio(source: Source, max_seconds: float = MAX_SECONDS, sample_rate: int = SAMPLE_RATE) -> str:
    """The beginning of a sound, in mono, as MP3: the one form that every browser plays."""
    start = source.start or 0.0
    end = start + max_seconds if source.end is None else min(source.end, start + max_seconds)
    samples = audio.read(Path(source.content), sample_rate, start, end)
    fade = min(len(samples), round(FADE_SECONDS * sample_rate))
    samples = samples.copy()
    samples[len(samples) - fade :] *= [1 - i / fade for i in range(fade)]  # a cut would click
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), sample_rate, format="MP3", subtype="MPEG_LAYER_III")
    return _make_data_uri("audio/mpeg", buffer.getvalue())


def _make_data_uri(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
