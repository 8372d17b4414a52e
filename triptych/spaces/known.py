"""The spaces that `triptych spaces` lists without training: facts from their authors, and figures that we measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Modality

STARTER = "starter"
RECOMMENDED = "hf:google/embeddinggemma-2"


@dataclass(frozen=True)
class Measurement:
    """A figure that we measured for a space."""

    data: str
    metric: str  # such as "text → audio R@10"
    percent: float
    command: str  # the command that prints the figure


@dataclass(frozen=True)
class KnownSpace:
    """Facts about a space that can be used without training, as its authors publish them."""

    name: str  # as in `--space` and `triptych.load`
    modalities: tuple[Modality, ...]
    embed_dim: int
    million_parameters: int
    licence: str


KNOWN_SPACES = (
    KnownSpace(RECOMMENDED, ("image", "audio", "text"), 768, 740, "Apache-2.0"),
    KnownSpace("hf:google/siglip2-base-patch16-224", ("image", "text"), 768, 375, "Apache-2.0"),
    KnownSpace("hf:laion/clap-htsat-unfused", ("audio", "text"), 512, 154, "Apache-2.0"),
    KnownSpace("st:sentence-transformers/all-MiniLM-L6-v2", ("text",), 384, 23, "Apache-2.0"),
)
# Our figures by name of the space. A space without an entry has not been measured.
MEASUREMENTS: Mapping[str, tuple[Measurement, ...]] = {
    STARTER: (
        Measurement("Flickr8k test", "text → image R@10", 29.0, "python -m bench starter"),
        Measurement("ESC-50 folds 3 to 5", "text → audio precision@10", 84.2, "python -m bench starter"),
    ),
}


def find_known(name: str) -> KnownSpace | None:
    """Return the entry of a space in KNOWN_SPACES, or None."""
    return next((space for space in KNOWN_SPACES if space.name == name), None)
