"""Where pretrained weights lie, and that they are the very ones we know: every file has its SHA-256 pinned."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_magic
from torch import Tensor

from triptych.errors import CheckpointError

INSTALL_PRETRAINED = "pip install 'triptych[pretrained]'"  # brings every package that the recipes' encoders need
# What a pickle of NumPy arrays names: how arrays are put together, and no more. NumPy 2 moved the first one.
ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True)
class PackagedFile:
    """A file inside an installed package; the package is found, never imported."""

    package: str
    path: str
    sha256: str
    install_command: str  # what a user types to get it

    def find(self) -> Path | None:
        """Where it lies; None where the package is not installed or lacks the file."""
        spec = find_spec(self.package)  # of a top-level package this runs none of its code
        folders = spec.submodule_search_locations if spec else None
        return next((path for folder in folders or () if (path := Path(folder) / self.path).is_file()), None)

    def unavailable_reason(self) -> str | None:
        """What to do where it is not at hand."""
        return None if self.find() else f"its weights are not installed; type: {self.install_command}"

    def read(self) -> bytes:
        """Its bytes, known to be the right ones."""
        path = self.find()
        if path is None:
            raise CheckpointError(f"{Path(self.path).name}: {self.unavailable_reason()}")
        return read_verified(path, self.sha256)


def read_verified(path: Path, sha256: str) -> bytes:
    """A file's bytes if their SHA-256 is the pinned one: what was checked is what is then parsed."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: the weights cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise CheckpointError(
            f"{path}: not the weights we know: SHA-256 {digest[:16]}…, expected {sha256[:16]}…; "
            "the file was changed, cut short, or is another version: get it again"
        )
    return content


def is_meta_device() -> bool:
    """Whether networks are now built on the meta device, for their shape alone: then no weights are read."""
    return torch.empty(0).device.type == "meta"


def read_pickled_arrays(content: bytes) -> Any:
    """The object inside a .npy file that holds a pickle of nested dicts of arrays; anything but arrays is refused."""
    stream = io.BytesIO(content)
    try:
        read_magic(stream)
        read_array_header_1_0(stream)
        return _ArrayUnpickler(stream, encoding="latin1").load().item()  # latin1: how NumPy reads arrays of Python 2
    except CheckpointError:
        raise
    except Exception as error:  # damaged pickles fail in any way at all
        raise CheckpointError(f"the weights cannot be read as pickled arrays ({error}); get the file again") from error


def fold_batch_norm(
    weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> dict[str, Tensor]:
    """A convolution's weight (out, …) and the batch norm after it, as one convolution's state.

    s = scale / √(variance + ε);  weight' = s · weight,  bias' = shift − s · mean
    """
    factor = scale.double() / (variance.double() + epsilon).sqrt()
    folded = weight.double() * factor.view(-1, *[1] * (weight.ndim - 1))
    return {"weight": folded.float(), "bias": (shift.double() - factor * mean.double()).float()}


class _ArrayUnpickler(pickle.Unpickler):
    """Admits what arrays are made of, and no other name: nothing in the pickle can run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise CheckpointError(f"the weights name {module}.{name}; only plain arrays are read: get the file again")
        return ALLOWED_GLOBALS[module, name]
