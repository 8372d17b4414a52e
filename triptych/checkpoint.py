"""Saving and loading a space, alone or with what a trainer must find again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from triptych import saved
from triptych.saved import SPACE_FILE, find, fingerprint
from triptych.space import Space, ready_made

__all__ = ["SPACE_FILE", "find", "fingerprint", "load", "load_all", "save"]


def save(space: Space, path: Path, extra: dict[str, Tensor] | None = None, notes: dict[str, str] | None = None) -> None:
    """Write a space, and what else a trainer wants to find again, to one file."""
    tensors, header = space.contents()
    saved.write(path, tensors | (extra or {}), header | (notes or {}))


def load(path: str | Path) -> Space:
    """The space of a run folder, of a folder in Hugging Face's form, or of a .safetensors file, ready to embed."""
    return load_all(path)[0]


def load_all(path: str | Path) -> tuple[Space, dict[str, Tensor], dict[str, Any]]:
    """A space, the other tensors of its file, and the header."""
    path = find(path)
    if path.is_dir():
        return ready_made(path), {}, {}
    tensors, header = saved.read(path)
    space = Space.of(path, tensors, header)
    return space, {name: value for name, value in tensors.items() if not name.startswith("space.")}, header
