"""Saving and loading: weights as safetensors, with the recipe and the encoders' files in the same file's header.

One file holds everything a space is, so it is replaced whole or not at all, and its parts cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.recipe import Recipe
from triptych.space import Space

SPACE_FILE = "space.safetensors"
FORM = "triptych-space-1"


def save(space: Space, path: Path, extra: dict[str, Tensor] | None = None, notes: dict[str, str] | None = None) -> None:
    """Write a space, and what else a trainer wants to find again, to one file."""
    tensors = {f"space.{name}": value for name, value in space.state_dict().items()} | (extra or {})
    files = {m: space.encoder(m).files() for m in space.modalities}
    header = {"form": FORM, "recipe": space.recipe.text(), "files": json.dumps(files)}
    with replacing(path) as temporary:
        plain = {name: value.contiguous() for name, value in tensors.items()}
        save_file(plain, temporary, metadata=header | (notes or {}))


def load(path: str | Path) -> Space:
    """The space of a run folder or of a .safetensors file, ready to embed."""
    return load_all(path)[0]


def load_all(path: str | Path) -> tuple[Space, dict[str, Tensor], dict[str, str]]:
    """A space, the other tensors of its file, and the header."""
    path = find(path)
    tensors, header = _read(path)
    if header.get("form") != FORM:
        raise CheckpointError(
            f"{path}: not a space saved by triptych (its form is {header.get('form', 'not given')!r})"
        )
    space = Space(Recipe.parse(header["recipe"], where=f"the recipe in {path}"))
    for modality, files in json.loads(header["files"]).items():
        if files:
            space.encoder(modality).restore(files)
    own = {name.removeprefix("space."): tensors.pop(name) for name in list(tensors) if name.startswith("space.")}
    try:
        space.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights do not fit the recipe in the file: {error}") from error
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
    digest = hashlib.sha256(find(path).read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error}); it may be cut short") from error


def identical(first: Space, second: Space) -> bool:
    """Whether two spaces have the same weights, bit by bit."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
