"""A pretrained network for one modality with its preprocessing, used by all Hugging Face encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.hugging_face_inputs import AudioInput, ImageInput, TextInput
from triptych.errors import RecipeError
from triptych.interfaces import Region, Source


class Tower(nn.Module):
    """A network and its preprocessing.

    `extract` calls the network with keyword arguments and returns parts (N, P, D). With pooled = True, `extract`
    returns one part per item: the embedding of the model.
    """

    def __init__(
        self,
        pretrained: PretrainedModel,
        network: nn.Module,
        inputs: ImageInput | AudioInput | TextInput,
        extract: Callable[[Any, dict[str, Tensor]], Tensor],
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.extract, self.pooled = network, inputs, extract, pooled
        self.feature_dim = self._probe_feature_dim(pretrained)

    def prepare(self, source: Source) -> Tensor:
        """Return the input of a source: token ids, pixels or audio features."""
        return self.inputs.prepare(source)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return parts (N, P, D) and their mask (N, P)."""
        if self.pooled:
            return self._run(inputs, mask), mask[:, :1]
        return self.inputs.run(self._run, inputs, mask)

    def part_locations(self, source: Source, parts: int) -> list[Region]:
        """Return the location of each part."""
        return self.inputs.part_locations(source, parts)

    def _run(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return self.extract(self.network, self.inputs.model_inputs(inputs, mask))

    @torch.no_grad()
    def _probe_feature_dim(self, pretrained: PretrainedModel) -> int:
        """Return the dimension of the parts of an example; raise RecipeError if the network fails."""
        was_training = self.network.training
        self.network.eval()
        try:
            example = self.inputs.example_input()[None].to(next(self.network.parameters()).device)
            return self._run(example, torch.ones(example.shape[:2], dtype=torch.bool, device=example.device)).shape[-1]
        except RecipeError:
            raise
        except Exception as error:  # networks of other authors can raise anything
            raise RecipeError(
                f"{pretrained.encoder_name}: model = {pretrained.model!r} fails on the output of its own preprocessing "
                f"({error})"
            ) from error
        finally:
            self.network.train(was_training)
