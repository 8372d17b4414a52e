"""A stand-in for a frozen encoder whose weights are missing, so that the other encoders of a space can be used."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from triptych.errors import CheckpointError
from triptych.interfaces import Encoder, Modality, Source


class UnavailableEncoder(Encoder):
    """Raises an error with a given reason whenever the space embeds an item of its modality, or saves the encoder."""

    frozen = True
    part_name = "item"

    def __init__(
        self,
        modality: Modality,
        feature_dim: int,
        max_seconds: float,
        reason: str,
        encoder: type[Encoder] = Encoder,
    ) -> None:
        super().__init__()
        self.class_names, self.class_categories = encoder.class_names, encoder.class_categories
        self.modality, self.feature_dim, self.max_seconds, self.reason = modality, feature_dim, max_seconds, reason

    def prepare(self, source: Source) -> Tensor:
        self._fail(source)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        self._fail(inputs, mask)

    def class_probabilities(self, mean: Tensor) -> Tensor:
        self._fail(mean)

    def extra_files(self) -> dict[str, str]:
        self._fail()

    def _fail(self, *_: object) -> NoReturn:
        raise CheckpointError(self.reason)
