"""List the spaces that can be used without training: which are ready on this machine, and what the others need."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.hub import HUB_PREFIX, INSTALL_PRETRAINED, INSTALL_SENTENCE_TRANSFORMERS
from triptych.spaces.default import find_default_space
from triptych.spaces.hub_cache import find_cached_folder, list_cached_models
from triptych.spaces.known import KNOWN_SPACES, MEASUREMENTS, KnownSpace, Measurement

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Modality

SPACE_FILE, HEADER_KEY = "space.safetensors", "triptych"
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors
LIBRARIES = {HUB_PREFIX: ("transformers", INSTALL_PRETRAINED)}  # by prefix; the others need sentence-transformers


@dataclass(frozen=True)
class SpaceInfo:
    """A space, and whether it can be used on this machine."""

    name: str  # as in `--space` and `triptych.load`
    modalities: tuple[Modality, ...]
    embed_dim: int | None
    million_parameters: int | None
    licence: str | None
    needs: tuple[str, ...]  # the commands that make the space ready; () if it is ready
    is_default: bool
    measurements: tuple[Measurement, ...]


def list_spaces(starter: KnownSpace, starter_needs: tuple[str, ...]) -> list[SpaceInfo]:
    """Describe the starter space, the known models, the other joint models in the cache, and the chosen space.

    The caller describes the starter space, because its encoders cannot be imported here.
    """
    default = find_default_space()
    infos = [_describe_known(starter, starter_needs, default.name)]
    infos += [_describe_known(known, _list_needs(known.name), default.name) for known in KNOWN_SPACES]
    for model in list_cached_models():
        name = HUB_PREFIX + model.name
        if name not in {info.name for info in infos}:
            needs, is_default = _list_needs(name), name == default.name
            infos.append(SpaceInfo(name, model.modalities, model.embed_dim, None, None, needs, is_default, ()))
    if not any(info.is_default for info in infos):
        modalities, embed_dim = read_space_header(default.name)
        infos.append(SpaceInfo(default.name, modalities, embed_dim, None, None, (), True, ()))
    return infos


def _describe_known(known: KnownSpace, needs: tuple[str, ...], default_name: str) -> SpaceInfo:
    return SpaceInfo(
        known.name,
        known.modalities,
        known.embed_dim,
        known.million_parameters,
        known.licence,
        needs,
        known.name == default_name,
        MEASUREMENTS.get(known.name, ()),
    )


def _list_needs(name: str) -> tuple[str, ...]:
    """Return the commands that make a model of the hub ready."""
    prefix, needs = name[: len(HUB_PREFIX)], []
    library, install = LIBRARIES.get(prefix, ("sentence_transformers", INSTALL_SENTENCE_TRANSFORMERS))
    if find_spec(library) is None:
        needs.append(install)
    if find_cached_folder(name.removeprefix(prefix)) is None:
        needs.append(f"triptych encoders fetch {name}")
    return tuple(needs)


def read_space_header(name: str) -> tuple[tuple[Modality, ...], int | None]:
    """Return the modalities and the dimension of a saved space, from the header of its file; () and None if unknown."""
    path = Path(name).expanduser()
    file = path / SPACE_FILE if path.is_dir() else path
    try:
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            header: Any = json.loads(content.read(min(size, MAX_HEADER_BYTES)))
        space = tomllib.loads(json.loads(header["__metadata__"][HEADER_KEY])["recipe"])["space"]
        return tuple(space["encoders"]), int(space["embed_dim"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return (), None
