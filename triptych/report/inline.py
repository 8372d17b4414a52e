"""Pictures and sounds made small enough to live inside a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import soundfile

from triptych.contracts import Source
from triptych.errors import MediaError
from triptych.media import audio, image

SIDE = 192  # pixels of the longer side
SECONDS, RATE, FADE = 6.0, 22_050, 0.02
BUDGET = 12_000_000  # bytes of all that is inlined into a page


class Inliner:
    """Sources as data: addresses, each made once, until a page has as much as it should carry."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget
        self.left_out = 0
        self._made: dict[Source, str | None] = {}

    def address(self, source: Source) -> str | None:
        """What to put into src=; None where the file cannot be read or the page is full."""
        if source not in self._made:
            self._made[source] = self._make(source)
        made = self._made[source]
        if made is None or len(made) > self.left:
            self.left_out += 1
            return None
        self.left -= len(made)
        return made

    def _make(self, source: Source) -> str | None:
        try:
            return picture(source) if source.modality == "image" else sound(source)
        except MediaError:
            return None  # it was read when it was embedded; if it has gone since, its name is left


def picture(source: Source, side: int = SIDE) -> str:
    """A picture as JPEG; small ones with few colours stay as they are, as PNG."""
    found = image.load(Path(source.content), side, image.moment(source))
    found.thumbnail((side, side))
    kinds = []
    for form, settings in (("JPEG", {"quality": 82}), ("PNG", {"optimize": True})):
        buffer = io.BytesIO()
        found.save(buffer, form, **settings)
        kinds.append((len(buffer.getvalue()), form, buffer.getvalue()))
    _, form, data = min(kinds)
    return _address(f"image/{form.lower()}", data)


def sound(source: Source, seconds: float = SECONDS, rate: int = RATE) -> str:
    """The beginning of a sound, in mono, as MP3: the one form that every browser plays."""
    start = source.start or 0.0
    end = start + seconds if source.end is None else min(source.end, start + seconds)
    samples = audio.read(Path(source.content), rate, start, end)
    fade = min(len(samples), round(FADE * rate))
    samples = samples.copy()
    samples[len(samples) - fade :] *= [1 - i / fade for i in range(fade)]  # a cut would click
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), rate, format="MP3", subtype="MPEG_LAYER_III")
    return _address("audio/mpeg", buffer.getvalue())


def _address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
