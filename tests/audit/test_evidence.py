"""p-values and kept mass against plain loops; folds that never tear a pair apart."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.audit.evidence import (
    BLOCK,
    EPSILON,
    LIKES,
    best_other,
    blocks,
    kept_mass,
    leads,
    p_values,
    standardised,
    weigh,
)
from triptych.audit.folds import part
from triptych.transport import transport_plan


def some_scores(seed: int, rows: int = 12, columns: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, and pairs in which every item occurs."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, columns, generator=rng, dtype=torch.float64)
    a = torch.arange(rows)
    return scores, a, torch.cat([torch.arange(columns), torch.randint(columns, (rows - columns,), generator=rng)])


@pytest.mark.parametrize("seed", range(3))
def test_p_values_count_mismatched_cells_that_fit_as_well(seed):
    scores, a, b = some_scores(seed)
    x = scores.numpy()
    fit = np.array(
        [[(s - r.mean()) / r.std() + (s - c.mean()) / c.std() for s, c in zip(r, x.T, strict=True)] for r in x]
    )
    assert standardised(scores).numpy() == pytest.approx(fit, abs=1e-9)
    own = set(zip(a.tolist(), b.tolist(), strict=True))
    cells = [fit[i, j] for i, j in itertools.product(range(12), range(9)) if (i, j) not in own]
    expected = [(sum(cell >= fit[i, j] for cell in cells) + 1) / (len(cells) + 1) for i, j in zip(a, b, strict=True)]
    assert p_values(scores, a, b).numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_kept_mass_is_that_of_the_plan(mass):
    scores, a, b = some_scores(4)
    kept, log_plan = kept_mass(scores, a, b, mass)
    weight_a, weight_b = torch.bincount(a).double() / 12, torch.bincount(b).double() / 12
    plan = transport_plan(-scores, EPSILON * float(scores.std()), weight_a, weight_b, mass=mass, tolerance=1e-9).plan
    assert log_plan.exp() == pytest.approx(plan, abs=1e-4)
    for e in range(12):
        share = plan[a[e], b[e]] / min(weight_a[a[e]], weight_b[b[e]])
        assert float(kept[e].exp()) == pytest.approx(float(share), abs=2e-3)


def test_a_wrong_pair_keeps_less_than_right_ones_and_a_shared_caption_costs_nothing():
    # Twenty sounds of four classes, whose only captions are the classes; one sound has a wrong one.
    classes = torch.arange(20) % 4
    # A wrong pair can fit by chance, its p-value may be anything: this draw is one in which it does not.
    drawn = torch.rand(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    scores = torch.nn.functional.one_hot(classes, 4).double() + 0.05 * drawn
    told = classes.clone()
    told[7] = 0
    found = weigh(scores, torch.arange(20), told)
    right = np.delete(np.arange(20), 7)
    assert found.kept[7] < found.kept[right].min() - 1
    assert np.exp(found.kept[right]).min() > 0.5
    assert found.p[7] > 10 * found.p[right].max()
    assert found.elsewhere[7] == 3


def test_the_best_other_is_never_ones_own_nor_the_one_that_fits_everything():
    scores = torch.eye(30) * 2 + 0.1 * torch.rand(30, 30)
    scores[:, 4] += 5  # fits everything
    best, value = best_other(lambda block: scores[block], 30, [{(i + 1) % 30} for i in range(30)], size=7)
    assert best.tolist() == list(range(30))
    assert value == pytest.approx(scores.diagonal().numpy())
    alone, _ = best_other(lambda block: scores[:1, :3], 1, [{0}])
    assert alone.tolist() != [0]


@given(st.integers(1, 5000))
def test_blocks_are_few_and_even(count):
    found = blocks(count)
    assert np.concatenate(found).tolist() == list(range(count))
    assert len(found) == -(-count // BLOCK)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=4, max_size=60), st.integers(2, 5))
def test_rows_that_share_a_pair_share_a_fold(pairs, count):
    named = {f"r{i}": some for i, some in enumerate(pairs)}
    fold = part(named, count, 0)
    assert fold == part(named, count, 0)
    assert set(fold) == set(named)
    for (one, x), (other, y) in itertools.combinations(named.items(), 2):
        assert not set(x) & set(y) or fold[one] == fold[other]


def test_folds_are_of_one_size_and_the_seed_decides():
    named = {f"r{i}": [i] for i in range(101)}
    sizes = np.bincount(list(part(named, 4, 0).values()))
    assert sizes.max() - sizes.min() <= 1
    assert part(named, 4, 0) != part(named, 4, 1)


@pytest.mark.parametrize("items", [4, 80])
def test_a_lead_is_over_the_items_most_like_its_own(items):
    rng = np.random.default_rng(items)
    scores, like = (torch.tensor(rng.normal(size=(9, items)), dtype=torch.float32) for _ in range(2))
    own = rng.integers(items, size=9).tolist()
    out = [{one, (one + 1) % items} for one in own]
    found = leads(lambda block: scores[block], lambda block: like[block], own, out, size=4)
    for q in range(9):
        others = sorted((j for j in range(items) if j not in out[q]), key=lambda j: -like[q, j])[:LIKES]
        expected = scores[q, own[q]] - sum(scores[q, j] for j in others) / len(others)
        assert found[q] == pytest.approx(float(expected), abs=1e-5)
    assert (
        leads(lambda block: scores[block], lambda block: like[block], own, [set(range(items))] * 9).tolist()
        == [0.0] * 9
    )
