"""A laboratory of made vectors: things that show in pictures, sounds and words through fixed random matrices."""

import pytest
import torch
from torch import Tensor

from triptych.contracts import Encoder, Modality, Source
from triptych.studies.lab import Lab, Table

WIDTH, THINGS, CAPTIONS = 12, 6, 3
NAMES: dict[Modality, str] = {"image": "efficientnet_lite0", "audio": "yamnet", "text": "minilm"}


class Given(Encoder):
    """An encoder whose features are at hand; nothing goes through it."""

    frozen, width, kind = True, WIDTH, "thing"

    def __init__(self, modality: Modality) -> None:
        super().__init__()
        self.modality = modality

    def prepare(self, source: Source) -> Tensor:
        raise AssertionError("features are at hand")

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("features are at hand")

    def judge(self, mean: Tensor) -> Tensor:
        return (mean.repeat(1, 84)[:, :1000] * 3).softmax(dim=1)


def made_table(rows: int, seed: int, views: int = 1) -> Table:
    """Rows whose vectors are noisy views of the same hidden thing."""
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, THINGS, generator=rng)
    ways = {m: torch.randn(THINGS, WIDTH, generator=torch.Generator().manual_seed(i)) for i, m in enumerate(NAMES)}
    count = {"image": views, "audio": 1, "text": CAPTIONS}
    vectors, places, counts = {}, {}, {}
    for m in NAMES:
        clean = (hidden @ ways[m]).repeat_interleave(count[m], dim=0)
        noisy = 4 + clean[:, None] + 0.1 * torch.randn(len(clean), 2, WIDTH, generator=rng)
        vectors[m], places[m] = noisy, torch.arange(rows * count[m]).reshape(rows, count[m])
        counts[m] = torch.full((rows,), count[m])
    return Table([f"{seed}-{i}" for i in range(rows)], vectors, places, counts, torch.arange(rows))


def made_lab(views: int = 1) -> Lab:
    sizes = {"train": 96, "valid": 24, "test": 24}
    tables = {split: made_table(rows, seed, views) for seed, (split, rows) in enumerate(sizes.items())}
    return Lab({m: Given(m) for m in NAMES}, NAMES, tables, epochs=2)


@pytest.fixture
def lab() -> Lab:
    return made_lab()
