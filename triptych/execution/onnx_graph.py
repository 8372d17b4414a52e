"""Export a module as an ONNX graph, and run the graph with ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

INPUTS_NAME, MASK_NAME = "inputs", "mask"


def export_graph(
    module: nn.Module, inputs: Tensor, mask: Tensor, output_names: list[str], has_dynamic_length: bool
) -> Any:
    """Export a module with the arguments (inputs, mask), with a dynamic batch size and optionally a dynamic length."""
    dynamic = torch.export.Dim.AUTO
    dynamic_axes = {0: dynamic, 1: dynamic} if has_dynamic_length else {0: dynamic}
    with torch.no_grad(), _suppress_exporter_warnings():
        return torch.onnx.export(
            module,
            (inputs, mask),
            dynamo=True,
            dynamic_shapes=(dynamic_axes, dynamic_axes),
            input_names=[INPUTS_NAME, MASK_NAME],
            output_names=output_names,
            verbose=False,
        )


def open_session(path: Path, output_names: list[str]) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Return a function that runs the graph in a file; the function may be called by several threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Waiting threads sleep, as those of PyTorch (triptych/__init__.py), so that they do not slow down other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    input_names = {graph_input.name for graph_input in session.get_inputs()}  # a graph may have no mask input

    def run(inputs: Tensor, mask: Tensor) -> list[Tensor]:
        feed = {name: x.numpy() for name, x in ((INPUTS_NAME, inputs), (MASK_NAME, mask)) if name in input_names}
        return [torch.from_numpy(output) for output in session.run(output_names, feed)]

    return run


@contextmanager
def _suppress_exporter_warnings() -> Iterator[None]:
    """Suppress the exporter's warnings about optional libraries."""
    logger = logging.getLogger("torch.onnx")
    previous_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(previous_level)
