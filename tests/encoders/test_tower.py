"""Towers: a network with its preprocessing."""

import pytest
import torch
from torch import nn

from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.tower import Tower
from triptych.errors import RecipeError


class TokenInput:
    """Token ids without a tokenizer."""

    def example_input(self):
        return torch.tensor([1, 2, 3])

    def model_inputs(self, inputs, mask):
        return {"inputs": inputs, "mask": mask}

    def run(self, forward, inputs, mask):
        return forward(inputs, mask), mask


def extract_tokens(network, arguments):
    assert not network.training or torch.is_grad_enabled()
    return network(arguments["inputs"])


def extract_mean(network, arguments):
    return network(arguments["inputs"]).mean(dim=1, keepdim=True)


def build_tower(extract, **options):
    inputs: TokenInput = TokenInput()
    return Tower(PretrainedModel("hf_x", "folder", "main"), nn.Embedding(10, 6), inputs, extract, **options)  # pyright: ignore[reportArgumentType]


def test_feature_dim_is_probed_in_evaluation_mode():
    tower = build_tower(extract_tokens)
    assert tower.feature_dim == 6
    assert tower.network.training


def test_parts_and_mask():
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    parts, part_mask = build_tower(extract_tokens)(ids, mask)
    assert parts.shape == (2, 3, 6)
    assert torch.equal(part_mask, mask)
    parts, part_mask = build_tower(extract_mean, pooled=True)(ids, mask)
    assert parts.shape == (2, 1, 6)
    assert part_mask.tolist() == [[True], [True]]


def test_failing_network_raises_recipe_error():
    def fail(network, arguments):
        raise ValueError("needs a decoder")

    with pytest.raises(RecipeError, match=r"hf_x: model = 'folder' fails on .*preprocessing \(needs a decoder\)"):
        build_tower(fail)
