"""Backends of encoders: half precision on a GPU, and ONNX Runtime on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych import __version__
from triptych.data.cache import ONNX_FOLDER, Cache, fingerprint_encoder
from triptych.data.loader import collate
from triptych.devices import EmbeddingPrecision, Execution
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.execution.onnx_graph import export_graph, open_session
from triptych.files import atomic_write
from triptych.inputs import Input, to_source
from triptych.interfaces import Backend, Encoder
from triptych.progress import notify
from triptych.space import Space

# The encoders that ONNX Runtime computes faster than PyTorch, with features within ONNX_TOLERANCE; measured by
# `python -m bench runtime`.
ONNX_ENCODERS = ("soundnet", "use_multilingual")
ONNX_TOLERANCE = 1e-6  # largest 1 - cosine between the parts of ONNX Runtime and of PyTorch
PARTS_NAME, PARTS_MASK_NAME = "parts", "parts_mask"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class HalfPrecision(Backend):
    """Computes an encoder under autocast, and returns float32."""

    def __init__(self, precision: EmbeddingPrecision) -> None:
        self.name = precision

    def __call__(self, encoder: Encoder, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(inputs.device.type, DTYPES[self.name]):
            parts, parts_mask = nn.Module.__call__(encoder, inputs, mask)
        return parts.float(), parts_mask


class OnnxRuntime(Backend):
    """Computes an encoder with ONNX Runtime on the CPU, from a graph that is exported once and cached."""

    name = "onnx"

    def __init__(self, run: Callable[[Tensor, Tensor], list[Tensor]]) -> None:
        self._run = run

    def __call__(self, encoder: Encoder, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        parts, parts_mask = self._run(inputs, mask)
        return parts, parts_mask


def apply_execution(space: Space, execution: Execution) -> Space:
    """Move a space to a device for inference, and set the backends of its encoders.

    The similarity stays on the CPU, because features are returned on the CPU, where search and evaluation score them.
    """
    device = execution.choose_device()
    space.to(device)
    space.similarity.cpu()
    backend = None if execution.precision == "float32" else HalfPrecision(execution.precision)
    for modality in space.modalities:
        space.encoder(modality).backend = backend
    if execution.runtime == "onnx":
        _set_onnx_backends(space)
    return space


def describe_backends(space: Space) -> str:
    """Return the backends of a space, such as "audio-onnx"; "" if PyTorch computes everything in float32.

    Vectors of spaces with other backends may differ slightly, so they have different caches and are not mixed.
    """
    backends = {m: space.encoder(m).backend for m in space.modalities}
    return "-".join(f"{m}-{backend.name}" for m, backend in backends.items() if backend)


def make_onnx_backend(encoder: Encoder, folder: Path | None = None) -> OnnxRuntime:
    """Return the backend of an encoder; export its graph to `folder` (default: the user's cache) if it is not there."""
    folder = Cache.default().folder / ONNX_FOLDER if folder is None else folder
    versions = f"triptych{__version__}-torch{torch.__version__.partition('+')[0]}"
    path = folder / f"{type(encoder).__name__.lower()}-{fingerprint_encoder(encoder)}-{versions}.onnx"
    names = [PARTS_NAME, PARTS_MASK_NAME]
    inputs, mask = _make_example(encoder)
    encoder.eval()
    if not path.exists():
        notify(f"exporting {type(encoder).__name__} to ONNX, once: {path}")
        has_dynamic_length = encoder.modality != "image"
        with atomic_write(path) as temp_path:
            export_graph(encoder, inputs, mask, names, has_dynamic_length).save(temp_path, external_data=False)
    backend = OnnxRuntime(open_session(path, names))
    with torch.inference_mode():
        distance = max_cosine_distance(encoder.forward(inputs, mask), backend(encoder, inputs, mask))
    if not distance <= ONNX_TOLERANCE:
        problem = f"ONNX Runtime and PyTorch disagree about {type(encoder).__name__} (1 - cosine = {distance:.1g})"
        raise UsageError(f"{path}: {problem}; delete the file and try again, or leave out runtime = onnx")
    return backend


def max_cosine_distance(expected: tuple[Tensor, Tensor], actual: tuple[Tensor, Tensor]) -> float:
    """Return the largest 1 - cosine of the parts (N, P, D) of two outputs, without padding; inf for other masks."""
    (parts, mask), (other_parts, other_mask) = expected, actual
    if not torch.equal(mask, other_mask):
        return float("inf")
    cosine = F.cosine_similarity(parts[mask].double(), other_parts[mask].double())
    return max(0.0, 1 - cosine.min().item())


def _set_onnx_backends(space: Space) -> None:
    supported = {ENCODERS[name] for name in ONNX_ENCODERS}
    encoders = [space.encoder(m) for m in space.modalities]
    encoders = [encoder for encoder in encoders if encoder.frozen and type(encoder) in supported]
    if not encoders:
        names = ", ".join(ONNX_ENCODERS)
        raise UsageError(f"runtime onnx is faster only for frozen encoders {names}; this space has none of them")
    for encoder in encoders:
        encoder.backend = make_onnx_backend(encoder)


def _make_example(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Return the prepared inputs and the mask of two synthetic items, of which one is longer."""
    rng = np.random.default_rng(0)
    items: dict[str, list[Input]] = {
        "image": [rng.integers(0, 256, (64, 96, 3), np.uint8), rng.integers(0, 256, (96, 64, 3), np.uint8)],
        "audio": [((0.1 * rng.standard_normal(16_000 * seconds)).astype(np.float32), 16_000) for seconds in (2, 5)],
        "text": ["a dog barks", "rain falls on the tin roof of a small house"],
    }
    return collate([encoder.prepare(to_source(item, encoder.modality)) for item in items[encoder.modality]])
