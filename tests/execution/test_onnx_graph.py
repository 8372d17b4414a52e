"""Exported graphs: dynamic axes, and inputs that the graph does not read."""

import pytest
import torch
from torch import nn

from triptych.execution.onnx_graph import export_graph, open_session


class _MaskedSum(nn.Module):
    def __init__(self, reads_mask):
        super().__init__()
        self.reads_mask = reads_mask

    def forward(self, inputs, mask):
        return (inputs * mask.unsqueeze(2) if self.reads_mask else inputs).sum(dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("reads_mask", [True, False])
def test_a_graph_runs_with_other_batch_sizes_and_lengths(tmp_path, reads_mask):
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    module = _MaskedSum(reads_mask)
    graph = export_graph(module, torch.randn(2, 4, 3), torch.ones(2, 4, dtype=torch.bool), ["sums"], True)
    graph.save(tmp_path / "graph.onnx")
    run = open_session(tmp_path / "graph.onnx", ["sums"])
    inputs, mask = torch.randn(5, 7, 3), torch.rand(5, 7) > 0.5
    (sums,) = run(inputs, mask)
    assert torch.allclose(sums, module(inputs, mask), atol=1e-6)
