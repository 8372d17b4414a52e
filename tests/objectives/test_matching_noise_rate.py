"""The estimated noise rate of the matching objective against a naive loop and against injected noise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_matching import matching_value, pair_of, permute
from tests.similarities.test_similarities import random_features
from triptych.errors import RecipeError
from triptych.interfaces import features_from_embeddings
from triptych.objectives.matching import Matching, estimate_noise_rate


def naive_noise_rate(scores, group):
    """Twice the fraction of pairs that more than half of the negatives beat, over both directions."""
    n, num_above = len(scores), 0
    for side in (scores, scores.T.contiguous()):
        for i in range(n):
            others = [j for j in range(n) if group[j] != group[i]]
            num_higher = sum(
                1.0 if side[i, j] > side[i, i] else 0.5 if side[i, j] == side[i, i] else 0.0 for j in others
            )
            num_above += num_higher / max(1, len(others)) > 0.5
    return min(1.0, 2 * num_above / (2 * n))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 99), st.booleans())
def test_noise_rate_matches_naive_loop(group, seed, ties):
    scores = torch.randn(len(group), len(group), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = scores.round() if ties else scores
    labels = torch.tensor(group)
    noise_rate = estimate_noise_rate(scores, labels[:, None] == labels)
    assert noise_rate.item() == pytest.approx(naive_noise_rate(scores, group), abs=1e-12)


@pytest.mark.parametrize("noise_rate", [0.0, 0.2, 0.4, 0.6])
def test_noise_rate_recovers_injected_noise(noise_rate):
    generator = torch.Generator().manual_seed(3)
    n, estimates = 400, []
    for _ in range(8):
        a = torch.nn.functional.normalize(torch.randn(n, 32, generator=generator), dim=1)
        b = a + 0.15 * torch.randn(n, 32, generator=generator)
        wrong = torch.randperm(n, generator=generator)[: round(noise_rate * n)]
        b[wrong] = b[wrong.roll(1)]
        estimates.append(estimate_noise_rate(a @ b.T, torch.eye(n, dtype=torch.bool)).item())
    assert sum(estimates) / 8 == pytest.approx(noise_rate, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("noise_rate", [0.0, 0.4, 0.6])
def test_noise_rate_is_estimated_during_training(noise_rate):
    """Scores are uninformative at first, and mismatched pairs could be memorised: ten epochs of 1,500 pairs."""
    generator = torch.Generator().manual_seed(5)
    n, width, batch = 1500, 24, 250
    latent = torch.randn(n, width, generator=generator)
    a = latent @ torch.randn(width, 64, generator=generator)
    b = (latent + 0.3 * torch.randn(n, width, generator=generator)) @ torch.randn(width, 64, generator=generator)
    wrong = torch.randperm(n, generator=generator)[: round(noise_rate * n)]
    b[wrong] = b[wrong.roll(1)]
    torch.manual_seed(0)
    left, right = torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(64, 32, bias=False)
    objective = Matching(epsilon=0.1, mass="estimate", ema_batches=10)
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=1e-2)
    for _ in range(10):
        for rows in torch.randperm(n, generator=generator).split(batch):
            sides = (F.normalize(side, dim=1) for side in (left(a[rows]), right(b[rows])))
            optimizer.zero_grad()
            matching_value(objective, pair_of(*map(features_from_embeddings, sides))).backward()
            optimizer.step()
    assert 1 - objective.metrics_to_log()["mass"] == pytest.approx(noise_rate, abs=0.05)


def test_estimated_mass_is_averaged_and_saved():
    objective = Matching(epsilon=0.1, mass="estimate", ema_batches=10)
    a, b = random_features(40, seed=1), random_features(40, seed=1)
    pair = pair_of(a, b)
    matching_value(objective, pair)
    assert objective.metrics_to_log()["mass"] == 1.0, "every pair is correct, and the average starts at 1"
    shuffled = pair_of(a, permute(b, torch.arange(40).roll(1)))
    expected = 0.0
    for _ in range(5):
        matching_value(objective, shuffled)
        expected += (estimate_noise_rate(shuffled.scores(), shuffled.positive_mask).item() - expected) / 10
    assert objective.metrics_to_log()["mass"] == pytest.approx(1 - expected)
    assert expected > 0.3
    restored = Matching(epsilon=0.1, mass="estimate", ema_batches=10)
    restored.load_state_dict(objective.state_dict())
    restored.eval()
    matching_value(restored, pair)
    assert restored.metrics_to_log()["mass"] == pytest.approx(1 - expected), "evaluation must not change it"
    restored.noise_rate.fill_(1.0)
    matching_value(restored, pair)
    assert restored.metrics_to_log()["mass"] == 0.1, "the plan transports some mass even if every pair seems wrong"
    with pytest.raises(RecipeError, match="stream_block = 4 cannot be combined with mass = 'estimate'"):
        Matching(mass="estimate", stream_block=4)
    with pytest.raises(RecipeError, match="ema_batches = 0"):
        Matching(mass="estimate", ema_batches=0)
