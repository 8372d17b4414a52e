"""Which frames of a video a view selects."""

import pytest
import torch

from tests.studies.conftest import make_experiment
from triptych.errors import UsageError
from triptych.studies import views
from triptych.studies.experiment import FeatureTable


def test_views_needs_videos():
    with pytest.raises(UsageError, match="needs rows with a video column"):
        views.run(make_experiment(), None)  # pyright: ignore[reportArgumentType]


def make_image_table(vector_indices: list[list[int]], vector_counts: list[int]) -> FeatureTable:
    """Make rows whose image vectors are the numbers 100, 1, 2, 3 …"""
    vectors = torch.arange(12.0)[:, None, None].expand(-1, 2, 3).clone()
    vectors[0] = 100
    rows = len(vector_counts)
    return FeatureTable(
        [str(i) for i in range(rows)],
        {"image": vectors},
        {"image": torch.tensor(vector_indices)},
        {"image": torch.tensor(vector_counts)},
        torch.arange(rows),
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("one frame", [[1], [4], [0], [6]]),
        ("one of eight, random", [[2, 3], [4], [0], [7]]),
        ("mean of eight", [[2.5], [4], [0], [7]]),
    ],
)
def test_select_views_uses_only_the_images_of_the_row(view, expected):
    """A complete video, a single image, a row without image, and a video with one unreadable frame."""
    table = views.select_views(make_image_table([[1, 2, 3], [4, 0, 0], [0, 0, 0], [6, 7, 0]], [3, 1, 0, 2]), view)
    images = [
        table.vectors["image"][indices[:count], 0, 0].tolist() or [0]
        for indices, count in zip(table.vector_indices["image"], table.vector_counts["image"].tolist(), strict=True)
    ]
    assert images == expected
