"""p-values, retained mass, margins and alternatives against naive loops."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.auditing.evidence import (
    EPSILON,
    NUM_NEIGHBOURS,
    ROW_BLOCK,
    compute_evidence,
    compute_margins,
    compute_p_values,
    compute_retained_mass,
    find_best_alternative,
    split_into_blocks,
    standardise,
)
from triptych.transport import transport_plan


def random_scores(seed: int, rows: int = 12, columns: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, and pairs in which every item occurs."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, columns, generator=rng, dtype=torch.float64)
    a = torch.arange(rows)
    return scores, a, torch.cat([torch.arange(columns), torch.randint(columns, (rows - columns,), generator=rng)])


@pytest.mark.parametrize("seed", range(3))
def test_p_values_count_mismatched_cells(seed):
    scores, a, b = random_scores(seed)
    x = scores.numpy()
    fit_score = np.array(
        [[(s - r.mean()) / r.std() + (s - c.mean()) / c.std() for s, c in zip(r, x.T, strict=True)] for r in x]
    )
    assert standardise(scores).numpy() == pytest.approx(fit_score, abs=1e-9)
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    cells = [fit_score[i, j] for i, j in itertools.product(range(12), range(9)) if (i, j) not in pairs]
    expected = [
        (sum(cell >= fit_score[i, j] for cell in cells) + 1) / (len(cells) + 1) for i, j in zip(a, b, strict=True)
    ]
    assert compute_p_values(scores, a, b).numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_retained_mass_matches_the_plan(mass):
    scores, a, b = random_scores(4)
    log_retained_mass, log_plan = compute_retained_mass(scores, a, b, mass)
    weight_a, weight_b = torch.bincount(a).double() / 12, torch.bincount(b).double() / 12
    plan = transport_plan(-scores, EPSILON * float(scores.std()), weight_a, weight_b, mass=mass, tolerance=1e-9).plan
    assert log_plan.exp() == pytest.approx(plan, abs=1e-4)
    for e in range(12):
        expected = plan[a[e], b[e]] / min(weight_a[a[e]], weight_b[b[e]])
        assert float(log_retained_mass[e].exp()) == pytest.approx(float(expected), abs=2e-3)


def test_wrong_pairs_retain_less_mass_and_shared_captions_do_not():
    # Twenty clips of four classes, captioned by their class; one caption is wrong.
    classes = torch.arange(20) % 4
    # The p-value of a wrong pair is uniform; with this seed it is not small by chance.
    drawn = torch.rand(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    scores = torch.nn.functional.one_hot(classes, 4).double() + 0.05 * drawn
    captions = classes.clone()
    captions[7] = 0
    evidence = compute_evidence(scores, torch.arange(20), captions)
    right_pairs = np.delete(np.arange(20), 7)
    assert evidence.log_retained_mass[7] < evidence.log_retained_mass[right_pairs].min() - 1
    assert np.exp(evidence.log_retained_mass[right_pairs]).min() > 0.5
    assert evidence.p_value[7] > 10 * evidence.p_value[right_pairs].max()
    assert evidence.preferred[7] == 3


def test_best_alternative_is_neither_the_own_item_nor_a_hub():
    scores = torch.eye(30) * 2 + 0.1 * torch.rand(30, 30)
    scores[:, 4] += 5  # fits everything
    best, value = find_best_alternative(
        lambda block: scores[block], 30, [{(i + 1) % 30} for i in range(30)], block_size=7
    )
    assert best.tolist() == list(range(30))
    assert value == pytest.approx(scores.diagonal().numpy())
    single_best, _ = find_best_alternative(lambda block: scores[:1, :3], 1, [{0}])
    assert single_best.tolist() != [0]


@given(st.integers(1, 5000))
def test_blocks_are_few_and_even(count):
    blocks = split_into_blocks(count)
    assert np.concatenate(blocks).tolist() == list(range(count))
    assert len(blocks) == -(-count // ROW_BLOCK)
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@pytest.mark.parametrize("items", [4, 80])
def test_margin_is_over_the_nearest_items(items):
    rng = np.random.default_rng(items)
    scores, similarity = (torch.tensor(rng.normal(size=(9, items)), dtype=torch.float32) for _ in range(2))
    own_items = rng.integers(items, size=9).tolist()
    excluded = [{one, (one + 1) % items} for one in own_items]
    margins = compute_margins(
        lambda block: scores[block], lambda block: similarity[block], own_items, excluded, block_size=4
    )
    for q in range(9):
        others = sorted((j for j in range(items) if j not in excluded[q]), key=lambda j: -similarity[q, j])[
            :NUM_NEIGHBOURS
        ]
        expected = scores[q, own_items[q]] - sum(scores[q, j] for j in others) / len(others)
        assert margins[q] == pytest.approx(float(expected), abs=1e-5)
    assert (
        compute_margins(
            lambda block: scores[block], lambda block: similarity[block], own_items, [set(range(items))] * 9
        ).tolist()
        == [0.0] * 9
    )
