"""Saving and loading: weights as safetensors, with the recipe and the encoders' files in the same file's header.

One file holds everything a space is, so it is replaced whole or not at all, and its parts cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.recipe import Recipe
from triptych.space import Space

SPACE_FILE = "space.safetensors"
HEADER, FORM = "triptych", "space-1"
PART = ".part"


def save(space: Space, path: Path, extra: dict[str, Tensor] | None = None, notes: dict[str, str] | None = None) -> None:
    """Write a space, and what else a trainer wants to find again, to one file."""
    tensors = {f"space.{name}": value for name, value in space.state_dict().items()} | (extra or {})
    files = {m: space.encoder(m).files() for m in space.modalities}
    header = {"form": FORM, "recipe": space.recipe.text(), "files": files} | (notes or {})
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
    tensors, header = _read(path)
    if header.get("form") != FORM:
        raise CheckpointError(f"{path}: not a space saved by triptych; `triptych train` makes one")
    own = {name.removeprefix("space."): tensors.pop(name) for name in list(tensors) if name.startswith("space.")}
    try:
        space = Space(Recipe.parse(header["recipe"], where=f"the recipe in {path}"))
        for modality in space.modalities:
            files = header["files"].get(modality)
            if files:
                space.encoder(modality).restore(files)
        space.load_state_dict(own)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: its parts do not fit together ({error}); the file has been changed") from error
    for name, value in space.named_parameters():
        if own[name].dtype != value.dtype:
            raise CheckpointError(f"{path}: the weights {name} are {own[name].dtype}; they should be {value.dtype}")
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: the weights {name} hold NaN or infinity; train the space again")
    return space.eval(), tensors, header


def find(path: str | Path) -> Path:
    """The file of a space, given it or the run folder it is in."""
    path = Path(path)
    if path.is_dir():
        inside = path / SPACE_FILE
        if not inside.is_file():
            raise CheckpointError(f"{path}: no {SPACE_FILE} in this folder; give the folder of a run that has trained")
        return inside
    if not path.is_file():
        raise CheckpointError(f"{path}: no such run folder or space file; `triptych train` makes one")
    return path


def fingerprint(path: str | Path) -> str:
    """A hash of a saved space, by which a collection knows its own."""
    with find(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp's own mode would hide the file from everybody else
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that is replaced whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remains(folder: Path, files: Iterable[str]) -> set[str]:
    """The names of the temporary files that a killed process has left of these files in a folder."""
    return {path.name for name in files for path in folder.glob(f".{name}.*{PART}")}


def sweep(folder: Path, files: Iterable[str]) -> None:
    """Remove what a killed process has left of these files."""
    for name in remains(folder, files):
        (folder / name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
