"""Figures: chance fractions against random orders, alternative texts are escaped."""

import numpy as np
import pytest

from triptych.report.plots import compute_chance_fractions, draw_matrix


@pytest.mark.parametrize(("num_items", "num_positives"), [(20, [1, 1, 1]), (12, [1, 3, 5])])
def test_chance_fractions_match_random_orders(num_items, num_positives):
    bins = [(1, 1), (2, 5), (6, 10), (11, num_items)]
    rng = np.random.default_rng(0)
    best = [1 + min(rng.permutation(num_items)[:r]) for r in num_positives for _ in range(3000)]
    fractions = [np.mean([low <= rank <= high for rank in best]) for low, high in bins]
    assert compute_chance_fractions(num_items, np.array(num_positives), bins) == pytest.approx(fractions, abs=0.03)
    assert sum(compute_chance_fractions(num_items, np.array(num_positives), bins)) == pytest.approx(1)


def test_texts_of_a_figure_are_escaped():
    svg = draw_matrix(np.eye(2), "<b>title</b>", '"quoted" <i>')
    assert "&lt;b&gt;title&lt;/b&gt;" in svg
    assert "<i>" not in svg
    assert 'aria-label="&#34;quoted&#34; &lt;i&gt;"' in svg
