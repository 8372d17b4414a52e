"""A pretrained network for one modality with its preprocessing, used by all Hugging Face encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, PatchInput, TextInput
from triptych.errors import RecipeError
from triptych.interfaces import Region, Source


class Tower(nn.Module):
    """A pretrained network and the preprocessing of its input.

    `extract` calls the network with keyword arguments and returns parts (N, P, D). With pooled = True, `extract`
    returns one part per item: the embedding of the model.
    """

    def __init__(
        self,
        pretrained: PretrainedModel,
        network: nn.Module,
        inputs: ImageInput | PatchInput | AudioInput | TextInput,
        extract: Callable[[Any, dict[str, Tensor]], Tensor],
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.extract, self.pooled = network, inputs, extract, pooled
        self.feature_dim = self._probe_feature_dim(pretrained)

    def prepare(self, source: Source) -> Tensor:
        """Return the input of the network for a source."""
        return self.inputs.prepare(source)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts (N, P, D) and the mask (N, P) of the parts."""
        parts, part_mask = self.inputs.run(self._run, inputs, mask)
        return parts, mask[:, :1] if self.pooled else part_mask

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        dtype = next(self.network.parameters()).dtype
        arguments = self.inputs.model_inputs(inputs, mask)
        arguments = {name: x.to(dtype) if x.is_floating_point() else x for name, x in arguments.items()}
        return self.extract(self.network, arguments).float()

    @torch.no_grad()
    def _probe_feature_dim(self, pretrained: PretrainedModel) -> int:
        """Return the dimension D of the parts of a test input. Raise RecipeError if the network fails."""
        was_training = self.network.training
        self.network.eval()
        try:
            example = self.inputs.example_input()[None].to(next(self.network.parameters()).device)
            parts = self._run(example, torch.ones(example.shape[:2], dtype=torch.bool, device=example.device))
        except RecipeError:
            raise
        except Exception as error:  # networks of other authors can raise any exception
            message = f"model = {pretrained.model!r} fails on the output of its own preprocessing ({error})"
            raise RecipeError(f"{pretrained.encoder_name}: {message}") from error
        finally:
            self.network.train(was_training)
        if self.pooled and (parts.ndim != 3 or parts.shape[1] != 1):
            raise pretrained.make_error(f"returns {tuple(parts.shape)} instead of one embedding per item")
        return parts.shape[-1]


# The functions below are the methods of every Hugging Face encoder. Encoders do not inherit these methods, because
# classes of triptych inherit over one level only.
def prepare_for_tower(self: Any, source: Source) -> Tensor:
    """Return the network's input: token ids (tokens,), pixels or a fixed window (1, ...), or a waveform (L, ...)."""
    return self.tower.prepare(source)


def run_tower(self: Any, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts (N, P, D) that the tower of an encoder computes, and the mask (N, P) of the parts."""
    return self.tower(inputs, mask)


def locate_tower_parts(self: Any, source: Source, parts: int) -> list[Region]:
    """Return the location of each part of a source."""
    return self.tower.inputs.part_locations(source, parts)
