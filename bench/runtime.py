"""ONNX Runtime and PyTorch on the packaged encoders: items per second of processor time, and drift.

The runtimes run alternately on one thread and on the same prepared batch of real data.
`python -m bench runtime.soundnet` measures one encoder.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.real_data import find_dataset, read_esc50_clips, read_flickr8k_captions
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.execution.backends import (
    PARTS_MASK_NAME,
    PARTS_NAME,
    OnnxRuntime,
    make_onnx_backend,
    max_cosine_distance,
)
from triptych.execution.onnx_graph import open_session
from triptych.interfaces import Encoder, Source

NAMES = ("efficientnet_lite0", "efficientnet_lite2", "efficientat_mn04", "yamnet", "soundnet", "minilm")
NAMES += ("use_multilingual",)
BATCH_SIZE, REPEATS = 32, 7
Run = Callable[[], tuple[Tensor, Tensor]]


def load_sources(modality: str, count: int) -> list[Source]:
    """Return the first images and captions of Flickr8k, or clips of ESC-50."""
    if modality == "audio":
        folder = find_dataset("esc50")
        assert folder is not None, "esc50 not available: set TRIPTYCH_DATA to the folder that contains it"
        return [Source("audio", clip[0]) for clip in read_esc50_clips(folder)[:count]]
    folder = find_dataset("flickr8k")
    assert folder is not None, "flickr8k not available: set TRIPTYCH_DATA to the folder that contains it"
    captions = read_flickr8k_captions(folder)
    if modality == "image":
        return [Source("image", path) for path in list(captions)[:count]]
    return [Source("text", texts[0]) for texts in list(captions.values())[:count]]


def quantise(source: Path, target: Path) -> None:
    """Write a copy of a graph with int8 weights, whose activations are quantised at run time, one scale per tensor."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    graph.graph.ClearField("value_info")  # shapes of the exporter that the quantiser would compare with its own
    quantize_dynamic(graph, target, per_channel=True, weight_type=QuantType.QInt8)


def make_runs(encoder: Encoder, inputs: Tensor, mask: Tensor, folder: Path) -> dict[str, Run]:
    """Return a function per runtime that encodes the batch."""
    onnx_backend = make_onnx_backend(encoder, folder)
    runs: dict[str, Run] = {
        "pytorch": lambda: encoder.forward(inputs, mask),
        "onnx": lambda: onnx_backend(encoder, inputs, mask),
    }
    try:
        quantise(next(folder.glob("*.onnx")), folder / "int8" / "graph.onnx")
        int8 = OnnxRuntime(open_session(folder / "int8" / "graph.onnx", [PARTS_NAME, PARTS_MASK_NAME]))
        int8(encoder, inputs, mask)
        runs["onnx int8"] = lambda: int8(encoder, inputs, mask)
    except Exception as error:  # the quantiser and the runtime raise many types
        print(f"  int8 is not possible: {str(error).splitlines()[0][:100]}")
    return runs


@torch.inference_mode()
def measure(name: str) -> None:
    """Print items per processor second, the ratio to PyTorch with its range, and the largest 1 - cosine of parts."""
    encoder = ENCODERS[name]().eval()
    inputs, mask = collate([encoder.prepare(s) for s in load_sources(encoder.modality, BATCH_SIZE)])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "int8").mkdir()
        runs = make_runs(encoder, inputs, mask, Path(folder))
        expected, seconds = encoder.forward(inputs, mask), {runtime: list[float]() for runtime in runs}
        drift = {runtime: max_cosine_distance(expected, run()) for runtime, run in runs.items()}  # and warm up
        for _ in range(REPEATS):
            for runtime, run in runs.items():
                started = time.process_time()
                run()
                seconds[runtime].append(time.process_time() - started)
    for runtime, times in seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds["pytorch"], times, strict=True))
        speed = f"{BATCH_SIZE / statistics.median(times):.0f}/s, {statistics.median(ratios):.2f}×"
        print(f"{name} {runtime}: {speed} ({ratios[0]:.2f}–{ratios[-1]:.2f}), drift {drift[runtime]:.0e}", flush=True)


def main(names: Sequence[str] = ()) -> None:
    """Measure the named encoders, by default all whose weights are available."""
    threads = torch.get_num_threads()
    for name in names or NAMES:
        if reason := ENCODERS[name].unavailable_reason():
            print(f"{name}: {reason}")
        else:
            torch.set_num_threads(1)
            try:
                measure(name)
            except UsageError as error:  # the graph differs from PyTorch
                print(f"{name}: {error}")
            torch.set_num_threads(threads)
