"""Saving and loading: weights as safetensors, with the recipe and the encoders' files in the same file's header.

One file holds everything a space is, so it is replaced whole or not at all, and its parts cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from triptych.data.cache import fingerprint as encoder_fingerprint
from triptych.encoders.joint import joint_modalities
from triptych.errors import CheckpointError
from triptych.files import replacing
from triptych.recipe import Recipe
from triptych.space import Space, ready_made

SPACE_FILE = "space.safetensors"
HUB = "hf:"  # before a name on the hub: a mistyped run folder must never become a question to the network
HEADER, FORM = "triptych", "space-2"


def save(space: Space, path: Path, extra: dict[str, Tensor] | None = None, notes: dict[str, str] | None = None) -> None:
    """Write a space, and what else a trainer wants to find again, to one file."""
    tensors = {f"space.{name}": value for name, value in _own(space).items()} | (extra or {})
    files = {m: space.encoder(m).files() for m in space.modalities}
    frozen = {m: encoder_fingerprint(space.encoder(m)) for m in space.frozen}
    header = {"form": FORM, "recipe": space.recipe.text(), "files": files, "frozen": frozen} | (notes or {})
    plain = {name: value.contiguous() for name, value in tensors.items()}
    try:
        with replacing(path) as temporary:
            # One key, as safetensors writes several in an order of its own: the same space must give the same bytes.
            # As bytes, as the library's own writing leaves a temporary file of its own behind when it is killed.
            temporary.write_bytes(to_bytes(plain, metadata={HEADER: json.dumps(header, sort_keys=True)}))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error}); is the disk full?") from error


def load(path: str | Path) -> Space:
    """The space of a run folder or of a .safetensors file, ready to embed."""
    return load_all(path)[0]


def load_all(path: str | Path) -> tuple[Space, dict[str, Tensor], dict[str, Any]]:
    """A space, the other tensors of its file, and the header."""
    path = find(path)
    if path.is_dir():
        return ready_made(path), {}, {}
    tensors, header = _read(path)
    if str(header.get("form")).startswith("space-") and header["form"] != FORM:
        raise CheckpointError(
            f"{path}: saved by another version of triptych ({header['form']}); train again (--restart)"
        )
    if header.get("form") != FORM:
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    own = {name.removeprefix("space."): tensors.pop(name) for name in list(tensors) if name.startswith("space.")}
    try:
        space = Space(Recipe.parse(header["recipe"], where=f"the recipe in {path}"))
        for modality in space.modalities:
            files = header["files"].get(modality)
            if files:
                space.encoder(modality).restore(files)
        _refuse_other_weights(path, space, header.get("frozen", {}))
        space.load_state_dict(
            own | {name: value for name, value in space.state_dict().items() if name not in _own(space)}
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: its parts do not fit together ({error}); the file has been changed") from error
    for name, value in space.named_parameters():
        if name not in own:
            continue  # frozen: it came with its encoder
        if own[name].dtype != value.dtype:
            raise CheckpointError(f"{path}: the weights {name} are {own[name].dtype}; they should be {value.dtype}")
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: the weights {name} hold NaN or infinity; train the space again")
    return space.eval(), tensors, header


def _own(space: Space) -> dict[str, Tensor]:
    """The weights that are the space's own; those of frozen encoders come with them, and are only named by a hash."""
    given = tuple(f"encoders.{modality}." for modality in space.frozen)
    return {name: value for name, value in space.state_dict().items() if not name.startswith(given)}


def _refuse_other_weights(path: Path, space: Space, frozen: dict[str, str]) -> None:
    for modality in space.frozen:
        encoder = space.encoder(modality)
        if encoder_fingerprint(encoder) != frozen.get(modality):
            raise CheckpointError(
                f"{path}: was trained with other weights or settings of {type(encoder).__name__} than are here; "
                f"install what it was trained with ({encoder.origin}), or train again"
            )


def find(path: str | Path) -> Path:
    """The file of a space, given it or the run folder it is in; or the folder of a joint model that is one already.

    A joint model may also be named as on the Hugging Face hub, as hf:laion/clap-htsat-unfused: it is fetched once.
    """
    place = _from_hub(str(path).removeprefix(HUB)) if str(path).startswith(HUB) else Path(path)
    if place.is_dir():
        inside = place / SPACE_FILE
        if inside.is_file():
            return inside
        if joint_modalities(place):
            return place
        raise CheckpointError(
            f"{place}: no {SPACE_FILE} in this folder, and no joint model (CLIP, SigLIP, CLAP); "
            "give the folder of a run that has trained"
        )
    if not place.is_file():
        raise CheckpointError(f"{place}: no such run folder or space file; `triptych train` makes one")
    return place


def fingerprint(path: str | Path) -> str:
    """A hash of a saved space, by which a collection knows its own."""
    place = find(path)
    if place.is_file():
        return _digest(place).hexdigest()[:16]
    files = sorted([*place.glob("*.json"), *place.glob("*.safetensors")])
    return hashlib.sha256(b"".join(_digest(file).digest() for file in files)).hexdigest()[:16]


def _digest(file: Path) -> hashlib._Hash:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256")


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except Exception as error:  # the library has a dozen of its own, for networks as for names
        raise CheckpointError(
            f"{HUB}{name}: not to be had from the Hugging Face hub, nor fetched before ({type(error).__name__})"
        ) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error}); it may be cut short") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    return tensors, header
