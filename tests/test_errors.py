"""The error tree, and the messages for values out of range and unknown names."""

import math

import pytest

from triptych import errors
from triptych.errors import RecipeError, TriptychError, check_range, describe_unknown


def test_every_error_is_a_triptych_error_and_in_the_tree_of_the_docstring():
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert all(issubclass(cls, TriptychError) for cls in classes)
    assert [cls.__name__ for cls in classes if cls.__name__ not in str(errors.__doc__)] == []


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, -math.inf])
def test_values_out_of_range_are_an_error(value):
    with pytest.raises(RecipeError, match=r"^rate = .*: must be between 0 and 1$"):
        check_range("rate", value, 0, 1)


def test_infinity_is_out_of_an_unbounded_range():
    with pytest.raises(RecipeError, match="rate = inf: must be at least 2"):
        check_range("rate", math.inf, 2)
    check_range("rate", 1e300, 2)


def test_unknown_names_are_listed_with_the_closest_match():
    known = ["cosine", "dot"]
    assert describe_unknown("similarity", "cosin", known) == (
        "similarity 'cosin' is unknown; known: cosine, dot; did you mean 'cosine'?"
    )
    assert describe_unknown("similarity", "x", []) == "similarity 'x' is unknown; known: none"
