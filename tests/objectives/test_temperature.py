"""The learned temperature."""

import math

import pytest

from triptych.errors import RecipeError
from triptych.objectives.temperature import clamp_log_scale_, make_log_scale, temperature_of


@pytest.mark.parametrize("learn", [True, False])
def test_log_scale_is_the_inverse_temperature(learn):
    log_scale = make_log_scale("infonce", 0.07, 0.01, learn)
    assert log_scale.exp().item() == pytest.approx(1 / 0.07)
    assert temperature_of(log_scale) == pytest.approx(0.07)
    assert log_scale.requires_grad == learn


def test_temperature_may_start_at_the_minimum():
    assert temperature_of(make_log_scale("infonce", 0.01, 0.01, True)) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("initial", "value", "expected"),
    [(0.1, 1e-4, 0.02), (0.1, 0.5, 0.5), (0.1, 3.0, 1.0), (2.0, 1.5, 1.5), (2.0, 9.0, 2.0)],
)
def test_clamp_keeps_temperature_in_its_range(initial, value, expected):
    log_scale = make_log_scale("infonce", initial, 0.02, True)
    log_scale.data.fill_(-math.log(value))
    clamp_log_scale_(log_scale, initial, 0.02)
    assert temperature_of(log_scale) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("temperature", "minimum"), [(0.0, 0.01), (0.005, 0.01), (0.1, 0.0), (math.inf, 0.01), (math.nan, 0.01)]
)
def test_invalid_temperatures_raise(temperature, minimum):
    with pytest.raises(RecipeError, match=r"sigmoid: temperature = .*need 0 < min_temperature <= temperature"):
        make_log_scale("sigmoid", temperature, minimum, True)
