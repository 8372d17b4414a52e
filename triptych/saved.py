"""The file a space is saved in: safetensors, with the recipe and the encoders' files in its header.

One file holds everything a space is, so it is replaced whole or not at all, and its parts cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from triptych.encoders.joint import joint_modalities
from triptych.encoders.weights import INSTALL_PRETRAINED
from triptych.errors import CheckpointError
from triptych.files import replacing

SPACE_FILE, SHARED_FILE, CONFIG_FILE = "space.safetensors", "model.safetensors", "config.json"
HUB = "hf:"  # before a name on the hub: a mistyped run folder must never become a question to the network
HEADER, FORM = "triptych", "space-2"


def write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header to one file."""
    plain = {name: value.contiguous() for name, value in tensors.items()}
    try:
        with replacing(path) as temporary:
            # One key, as safetensors writes several in an order of its own: the same space must give the same bytes.
            # As bytes, as the library's own writing leaves a temporary file of its own behind when it is killed.
            whole = {HEADER: json.dumps({"form": FORM} | header, sort_keys=True)}
            temporary.write_bytes(to_bytes(plain, metadata=whole))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error}); is the disk full?") from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that triptych wrote."""
    tensors, header = _open(path)
    if str(header.get("form")).startswith("space-") and header["form"] != FORM:
        raise CheckpointError(
            f"{path}: saved by another version of triptych ({header['form']}); train again (--restart)"
        )
    if header.get("form") != FORM:
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    return tensors, header


def find(path: str | Path) -> Path:
    """The file of a space, given it or the run folder it is in; or the folder of a joint model that is one already.

    A joint model may also be named as on the Hugging Face hub, as hf:laion/clap-htsat-unfused: it is fetched once.
    """
    place = _from_hub(str(path).removeprefix(HUB)) if str(path).startswith(HUB) else Path(path)
    if place.is_dir():
        for inside in (place / SPACE_FILE, place / SHARED_FILE):
            if inside.is_file() and (inside.name == SPACE_FILE or _is_ours(place)):
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


def _is_ours(folder: Path) -> bool:
    """Whether a folder in Hugging Face's form holds a space of triptych, not some other model."""
    try:
        return json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("model_type") == "triptych"
    except (OSError, ValueError, AttributeError):
        return False


def _digest(file: Path) -> hashlib._Hash:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256")


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except Exception as error:  # the library has a dozen of its own, for networks as for names
        raise CheckpointError(f"{HUB}{name}: {_hub_failure(error)}") from error


def _hub_failure(error: Exception) -> str:
    """Why a model could not be fetched from the Hugging Face hub, and what to do."""
    if isinstance(error, ImportError):
        return f"fetching a model needs huggingface_hub, which cannot be imported; type: {INSTALL_PRETRAINED}"
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return "not a name of a model on the Hugging Face hub; one looks like openai/clip-vit-base-patch32"
    if isinstance(error, errors.GatedRepoError):
        return "its owner asks for your consent: accept the terms on its page on the hub, then type: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hugging Face hub has no public model of this name; if it is private, type: hf auth login"
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError):
        return (
            "the Hugging Face hub cannot be reached, and the model has not been fetched before; "
            "connect this machine to the network once, or give a folder that holds the model"
        )
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return f"cannot be fetched from the Hugging Face hub: {reason[:200]}"


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            # Copies: the library maps the file into memory, and a mapped file keeps its bytes on the disk after it has
            # been replaced. A resumed training would then need room for one more state than it has checked for.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error}); it may be cut short") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    return tensors, header
