"""The device, the precision and the runtime that embed, and how they are chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from triptych.errors import UsageError, describe_unknown

if TYPE_CHECKING:
    import torch

DEVICE_VARIABLE = "TRIPTYCH_DEVICE"  # the default of all arguments and options `device`
AUTO = "auto"  # the first available device of cuda, mps, cpu
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
CPU_BATCH_SIZE, ACCELERATOR_BATCH_SIZE = 64, 256  # inputs that are embedded together

EmbeddingPrecision = Literal["float32", "bfloat16", "float16"]
Runtime = Literal["pytorch", "onnx"]


@dataclass(frozen=True)
class Execution:
    """How embeddings are computed. The fields are the options --device, --precision and --runtime."""

    device: str = ""  # "": $TRIPTYCH_DEVICE, or auto
    precision: EmbeddingPrecision = "float32"
    runtime: Runtime = "pytorch"

    def __post_init__(self) -> None:
        if self.precision not in get_args(EmbeddingPrecision):
            raise UsageError(describe_unknown("precision", str(self.precision), get_args(EmbeddingPrecision)))
        if self.runtime not in get_args(Runtime):
            raise UsageError(describe_unknown("runtime", str(self.runtime), get_args(Runtime)))
        if self.runtime == "onnx" and self.precision != "float32":
            raise UsageError(f"runtime onnx computes in float32; leave out precision = {self.precision}")

    def choose_device(self) -> torch.device:
        """Return the device. Raise UsageError if it is not available, or if the runtime does not use it."""
        import torch

        if self.runtime == "onnx":
            check_onnx_packages()
            if self.device not in ("", AUTO, "cpu"):
                raise UsageError(f"runtime onnx runs on the cpu; leave out device = {self.device}")
            return torch.device("cpu")
        device = choose_device(self.device)
        if device.type == "cpu" and self.precision != "float32":
            problem = f"precision = {self.precision} needs a GPU; this process embeds on the cpu"
            raise UsageError(f"{problem}; leave out the precision (available devices: {_format_devices()})")
        return device


DEFAULT_EXECUTION = Execution()
_execution: ContextVar[Execution] = ContextVar("execution", default=DEFAULT_EXECUTION)


def choose_execution(
    device: str | torch.device | None = None,
    precision: EmbeddingPrecision | None = None,
    runtime: Runtime | None = None,
) -> Execution:
    """Return how to compute; the default of an argument is that of `use_execution`."""
    settings = {"device": device and str(device), "precision": precision, "runtime": runtime}
    return replace(_execution.get(), **{name: value for name, value in settings.items() if value is not None})


@contextmanager
def use_execution(execution: Execution) -> Iterator[None]:
    """Set how spaces that are loaded or trained in the block compute. Raise UsageError if a device is not available.

    Example:
        >>> with use_execution(Execution(device="cpu")):
        ...     space = triptych.load("runs/mine")
    """
    if execution != DEFAULT_EXECUTION or os.environ.get(DEVICE_VARIABLE):  # otherwise, do not import torch here
        execution.choose_device()
    token = _execution.set(execution)
    try:
        yield
    finally:
        _execution.reset(token)


def choose_device(name: str | torch.device | None = None, local_rank: int = 0) -> torch.device:
    """Return a device that is available.

    Args:
        name: "auto", "cpu", "cuda", "cuda:1", "mps" or a torch.device. "auto" is the first available device of cuda,
            mps and cpu. Default: the environment variable TRIPTYCH_DEVICE, or "auto".
        local_rank: The number of this process among the processes on this machine. With "auto" or "cuda", each process
            uses its own GPU.

    Returns:
        The device; with "auto" or "cuda" on a machine with GPUs, its number is set.

    Raises:
        UsageError: The device is unknown or not available. The message lists the available devices.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    import torch

    name = str(name or os.environ.get(DEVICE_VARIABLE) or AUTO).strip().lower()
    available = list_devices()
    if name == AUTO:
        name = available[0].partition(":")[0]
    if name == "cuda" and available[0].startswith("cuda"):
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    if name not in available:
        raise UsageError(f"device {name!r} is not available; available: {_format_devices()}")
    return torch.device(name)


def list_devices() -> list[str]:
    """Return the names of the available devices, fastest first: every GPU, mps, cpu."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def default_batch_size(device: Any) -> int:
    """Return the number of inputs that a device embeds together by default; it is larger on a GPU."""
    return CPU_BATCH_SIZE if device.type == "cpu" else ACCELERATOR_BATCH_SIZE


def check_onnx_packages() -> None:
    """Raise UsageError if a package for ONNX is missing."""
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise UsageError(f"{', '.join(missing)} not installed; run: pip install 'triptych[export]'")


def _format_devices() -> str:
    return ", ".join(list_devices())
