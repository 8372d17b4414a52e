"""An experiment over generated vectors: latents seen through a fixed random matrix per modality."""

import pytest
import torch
from torch import Tensor

from triptych.interfaces import Encoder, Modality, Source
from triptych.studies.experiment import Experiment, FeatureTable

FEATURE_DIM, LATENT_DIM, CAPTIONS = 12, 6, 3
NAMES: dict[Modality, str] = {"image": "efficientnet_lite0", "audio": "yamnet", "text": "minilm"}


class PrecomputedEncoder(Encoder):
    """An encoder whose features are precomputed; it is never run."""

    frozen, feature_dim, part_name = True, FEATURE_DIM, "part"

    def __init__(self, modality: Modality) -> None:
        super().__init__()
        self.modality = modality

    def prepare(self, source: Source) -> Tensor:
        raise AssertionError("features are precomputed")

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("features are precomputed")

    def class_probabilities(self, mean: Tensor) -> Tensor:
        return (mean.repeat(1, 84)[:, :1000] * 3).softmax(dim=1)


def make_table(rows: int, seed: int, views: int = 1) -> FeatureTable:
    """Make rows whose vectors are noisy projections of the same latent."""
    rng = torch.Generator().manual_seed(seed)
    latents = torch.randn(rows, LATENT_DIM, generator=rng)
    projections = {
        m: torch.randn(LATENT_DIM, FEATURE_DIM, generator=torch.Generator().manual_seed(i)) for i, m in enumerate(NAMES)
    }
    counts_per_row = {"image": views, "audio": 1, "text": CAPTIONS}
    vectors, vector_indices, vector_counts = {}, {}, {}
    for m in NAMES:
        clean = (latents @ projections[m]).repeat_interleave(counts_per_row[m], dim=0)
        noisy = 4 + clean[:, None] + 0.1 * torch.randn(len(clean), 2, FEATURE_DIM, generator=rng)
        vectors[m], vector_indices[m] = noisy, torch.arange(rows * counts_per_row[m]).reshape(rows, counts_per_row[m])
        vector_counts[m] = torch.full((rows,), counts_per_row[m])
    return FeatureTable(
        [f"{seed}-{i}" for i in range(rows)], vectors, vector_indices, vector_counts, torch.arange(rows)
    )


def make_experiment(views: int = 1) -> Experiment:
    sizes = {"train": 96, "valid": 24, "test": 24}
    tables = {split: make_table(rows, seed, views) for seed, (split, rows) in enumerate(sizes.items())}
    return Experiment({m: PrecomputedEncoder(m) for m in NAMES}, NAMES, tables, epochs=2)


@pytest.fixture
def experiment() -> Experiment:
    return make_experiment()
