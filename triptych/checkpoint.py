"""Saving and loading a space, alone or with what a trainer must find again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from triptych import saved
from triptych.saved import SPACE_FILE, compute_fingerprint, resolve_path
from triptych.space import Space, from_joint_model

__all__ = ["SPACE_FILE", "compute_fingerprint", "load", "load_with_extras", "resolve_path", "save"]


def save(
    space: Space, path: Path, extra_tensors: dict[str, Tensor] | None = None, extra_header: dict[str, str] | None = None
) -> None:
    """Write a space, and what else a trainer wants to find again, to one file."""
    tensors, header = space.to_checkpoint()
    saved.write_tensors(path, tensors | (extra_tensors or {}), header | (extra_header or {}))


def load(path: str | Path) -> Space:
    """The space of a run folder, of a folder in Hugging Face's form, or of a .safetensors file, ready to embed."""
    return load_with_extras(path)[0]


def load_with_extras(path: str | Path) -> tuple[Space, dict[str, Tensor], dict[str, Any]]:
    """A space, the other tensors of its file, and the header."""
    path = resolve_path(path)
    if path.is_dir():
        return from_joint_model(path), {}, {}
    tensors, header = saved.read_tensors(path)
    space = Space.from_checkpoint(path, tensors, header)
    return space, {name: value for name, value in tensors.items() if not name.startswith("space.")}, header
