"""The choice of the hold: cross-entropies against a loop, and known answers on synthetic pairs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space
from triptych.training.hold_selection import (
    NUM_FOLDS,
    TEMPERATURES,
    choose_hold,
    cross_entropies,
    make_folds,
    select_strongest,
)
from triptych.training.warm_start import residual_heads, standardise_heads

DIM = 32


class Features:
    """Features in memory, in place of the cache."""

    def __init__(self, sources, matrix):
        self.index_of, self.failures = {source: i for i, source in enumerate(sources)}, {}
        self.pooled = torch.stack([matrix, matrix], dim=1)  # (K, 2, DIM)

    def load_batch(self, indices, with_parts):
        pooled = self.pooled[torch.as_tensor(indices)]
        return pooled, torch.ones(pooled.shape[:2], dtype=torch.bool)


def make_row(image, group):
    return Row(image, None, Path(image), None, (f"text of {image}",), group, None, None, None, None, 0)


def test_cross_entropies_match_a_loop():
    torch.manual_seed(0)
    scores, groups = torch.randn(6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 3, 0])
    scale, best = scores.std().item(), None
    for temperature in TEMPERATURES:
        losses = []
        for matrix in (scores.tolist(), scores.T.tolist()):
            row_losses = []
            for i, row in enumerate(matrix):
                logits = [s / (temperature * scale) for s in row]
                total = math.exp(logits[i])
                total += sum(math.exp(x) for j, x in enumerate(logits) if groups[j] != groups[i])
                row_losses.append(math.log(total) - logits[i])
            losses.append(row_losses)
        if best is None or np.mean(losses) < np.mean(best):
            best = losses
    assert torch.allclose(cross_entropies(scores, groups), torch.tensor(best, dtype=torch.float64))


def test_the_strongest_hold_within_one_standard_error_is_selected():
    start = [1.0, 1.0, 1.0, 1.0]
    clearly_better, hardly_better = [0.5, 0.6, 0.5, 0.4], [0.2, 1.7, 1.8, 0.2]
    assert select_strongest({math.inf: start, 1.0: clearly_better, 0.0: clearly_better}) == 1.0
    assert select_strongest({math.inf: start, 1.0: hardly_better}) == math.inf
    assert select_strongest({math.inf: start, 1.0: start}) == math.inf
    assert select_strongest({math.inf: [], 1.0: []}) == math.inf


def test_folds_keep_the_rows_of_a_file_together_and_divide_the_rows_of_a_text():
    rows = [make_row(f"{i // 2 if i < 20 else i}.png", f"class {i % 4}") for i in range(60)]
    folds = make_folds(rows, 0)
    assert all(folds[i] == folds[i + 1] for i in range(0, 20, 2))
    assert set(folds) == set(range(NUM_FOLDS))
    assert folds == make_folds(rows, 0) != make_folds(rows, 1)
    assert len({fold for fold, row in zip(folds, rows, strict=True) if row.group == "class 0"}) > 1


def choose_on_synthetic_pairs(count, agreement, misalignment):
    """Images have random features; texts have the rotated features, plus noise. Return the hold and the space."""
    torch.manual_seed(5)
    recipe = Recipe.load("trimodal").restrict_to({"image", "text"})
    encoders = {
        "image": Component("image_cnn", {"feature_dim": DIM}),
        "text": Component("text_transformer", {"feature_dim": DIM, "num_heads": 4}),
    }
    config = replace(recipe.space, encoders=encoders, embed_dim=DIM, head=Component("none"), residual=True)
    training = replace(recipe.training, learning_rate=1e-2, batch_size=64, init="ready")
    recipe = replace(recipe, space=config, training=training)
    space = Space(recipe)
    rows = [make_row(f"{i}.png", f"{i}") for i in range(count)]
    x = torch.randn(count, DIM)
    partner = agreement * x @ torch.linalg.qr(torch.eye(DIM) + misalignment * torch.randn(DIM, DIM)).Q
    texts = partner + (1 - agreement) * torch.randn(count, DIM)
    features = {
        "image": Features([sources_of(row, "image")[0] for row in rows], x),
        "text": Features([sources_of(row, "text")[0] for row in rows], texts),
    }
    features = cast(Any, features)
    standardise_heads(space, rows, features)
    return choose_hold(space, rows, features), space


@pytest.mark.slow
def test_noise_pairs_keep_the_ready_space_and_informative_pairs_choose_a_weak_hold():
    hold, space = choose_on_synthetic_pairs(count=40, agreement=0.0, misalignment=1.0)
    assert hold == math.inf
    assert not any(head.correction.any() for head in residual_heads(space).values()), "the heads are not reset"
    hold, _ = choose_on_synthetic_pairs(count=200, agreement=0.9, misalignment=1.0)
    assert hold <= 1.0
