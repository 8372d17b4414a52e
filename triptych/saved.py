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
from triptych.files import atomic_write

SPACE_FILE, PRETRAINED_FILE, CONFIG_FILE = "space.safetensors", "model.safetensors", "config.json"
HUB_PREFIX = "hf:"  # before a name on the hub: a mistyped run folder must never become a question to the network
HEADER_KEY, FORMAT_VERSION = "triptych", "space-3"


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header to one file."""
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    try:
        with atomic_write(path) as temp_path:
            # One key, as safetensors writes several in an order of its own: the same space must give the same bytes.
            # As bytes, as the library's own writing leaves a temporary file of its own behind when it is killed.
            metadata = {HEADER_KEY: json.dumps({"format_version": FORMAT_VERSION} | header, sort_keys=True)}
            temp_path.write_bytes(to_bytes(contiguous, metadata=metadata))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error}); is the disk full?") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that triptych wrote."""
    tensors, header = _open_safetensors(path)
    if str(header.get("format_version")).startswith("space-") and header["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: saved by another version of triptych ({header['format_version']}); train again (--restart)"
        )
    if header.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    return tensors, header


def resolve_path(path: str | Path) -> Path:
    """The file of a space, given it or the run folder it is in; or the folder of a joint model that is one already.

    A joint model may also be named as on the Hugging Face hub, as hf:laion/clap-htsat-unfused: it is fetched once.
    """
    resolved = (
        _download_from_hub(str(path).removeprefix(HUB_PREFIX)) if str(path).startswith(HUB_PREFIX) else Path(path)
    )
    if resolved.is_dir():
        for candidate in (resolved / SPACE_FILE, resolved / PRETRAINED_FILE):
            if candidate.is_file() and (candidate.name == SPACE_FILE or _is_triptych_model(resolved)):
                return candidate
        if joint_modalities(resolved):
            return resolved
        raise CheckpointError(
            f"{resolved}: no {SPACE_FILE} in this folder, and no joint model (CLIP, SigLIP, CLAP); "
            "give the folder of a run that has trained"
        )
    if not resolved.is_file():
        raise CheckpointError(f"{resolved}: no such run folder or space file; `triptych train` makes one")
    return resolved


def compute_fingerprint(path: str | Path) -> str:
    """A hash of a saved space, by which a collection knows its own."""
    resolved = resolve_path(path)
    if resolved.is_file():
        return _hash_file(resolved).hexdigest()[:16]
    files = sorted([*resolved.glob("*.json"), *resolved.glob("*.safetensors")])
    return hashlib.sha256(b"".join(_hash_file(file).digest() for file in files)).hexdigest()[:16]


def _is_triptych_model(folder: Path) -> bool:
    """Whether a folder in Hugging Face's form holds a space of triptych, not some other model."""
    try:
        return json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("model_type") == "triptych"
    except (OSError, ValueError, AttributeError):
        return False


def _hash_file(file: Path) -> hashlib._Hash:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256")


def _download_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except Exception as error:  # the library has a dozen of its own, for networks as for names
        raise CheckpointError(f"{HUB_PREFIX}{name}: {_describe_hub_error(error)}") from error


def _describe_hub_error(error: Exception) -> str:
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


def _open_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER_KEY, "{}"))
            # Copies: the library maps the file into memory, and a mapped file keeps its bytes on the disk after it has
            # been replaced. A resumed training would then need room for one more state than it has checked for.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error}); it may be cut short") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    return tensors, header
