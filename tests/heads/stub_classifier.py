"""An encoder with three classes and fixed weights, for the tests of heads."""

import torch

from triptych.interfaces import Encoder

CLASSES = ("Dog", "cat, house cat", "drum")


class StubClassifier(Encoder):
    modality, part_name = "audio", "frame"

    def __init__(self, feature_dim=7):
        super().__init__()
        self.feature_dim = feature_dim
        self.weight = torch.randn(feature_dim, 3, generator=torch.Generator().manual_seed(3))

    def prepare(self, source):
        raise NotImplementedError

    def forward(self, inputs, mask):
        return inputs, mask

    def class_probabilities(self, mean):
        return (mean @ self.weight.to(mean.dtype)).sigmoid()

    @staticmethod
    def class_names() -> tuple[str, ...]:
        return CLASSES

    @staticmethod
    def class_categories() -> tuple[str, ...]:
        return "", "animal", ""
