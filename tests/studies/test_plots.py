"""The plots that several studies share."""

import pytest
from matplotlib.figure import Figure

from triptych.studies.plots import set_log_y


@pytest.mark.parametrize(("highest", "has_minor_numbers"), [(80.0, True), (3000.0, False)])
def test_a_wide_logarithmic_axis_has_numbers_at_powers_of_ten_only(highest, has_minor_numbers):
    axes = Figure().subplots()
    axes.plot([0, 1], [2.0, highest])
    set_log_y(axes)
    axes.figure.canvas.draw()
    assert any(label.get_text() for label in axes.get_yticklabels(minor=True)) == has_minor_numbers
    assert "10" in [label.get_text() for label in axes.get_yticklabels()]
