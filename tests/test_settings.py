"""Typed settings from TOML tables, components from registries, and overrides."""

from dataclasses import dataclass
from typing import Literal

import pytest

from triptych.errors import RecipeError
from triptych.plugins import Registry
from triptych.settings import Component, apply_override, read_component, read_dataclass, read_value


@dataclass
class Options:
    size: int = 1
    rates: tuple[float, ...] = ()


class Blur:
    def __init__(self, radius: float = 1.0, mode: Literal["box", "gauss"] = "box") -> None: ...


@pytest.mark.parametrize(
    ("value", "expected_type", "result"),
    [
        (3, float, 3.0),
        ([1, 2.5], tuple[float, ...], (1.0, 2.5)),
        ([["a", "b"]], tuple[tuple[str, str], ...], (("a", "b"),)),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("box", Literal["box", "gauss"], "box"),
        (0.5, float | Literal["estimate"], 0.5),
        ("estimate", float | Literal["estimate"], "estimate"),
    ],
)
def test_values_are_converted_to_the_expected_type(value, expected_type, result):
    assert read_value(value, expected_type, "key") == result


@pytest.mark.parametrize(
    ("value", "expected_type", "message"),
    [
        (True, int, "key = True: must be an integer"),
        (1, bool, "key = 1: must be true or false"),
        ("1", float, "key = '1': must be a number"),
        (1, str, "key = 1: must be a string"),
        ([1], tuple[str, ...], "key = 1: must be a string"),
        ("a", tuple[str, ...], "key = 'a': must be a list of strings"),
        ("tent", Literal["box", "gauss"], "key: value 'tent' is unknown; known: box, gauss"),
    ],
)
def test_values_of_another_type_are_an_error(value, expected_type, message):
    with pytest.raises(RecipeError) as caught:
        read_value(value, expected_type, "key")
    assert message in str(caught.value)


def test_a_component_has_all_settings_of_its_constructor():
    filters = Registry("filter", Blur)
    filters["blur"] = Blur
    expected = Component("blur", {"radius": 2.0, "mode": "box"})
    assert read_component({"name": "blur", "radius": 2}, filters, "filters.0") == expected
    assert read_component("blur", filters, "filters.0").settings["radius"] == 1.0
    with pytest.raises(RecipeError, match=r"filters\.0: key 'size' is unknown; known: mode, name, radius"):
        read_component({"name": "blur", "size": 2}, filters, "filters.0")


def test_a_dataclass_is_read_from_its_table():
    assert read_dataclass(Options, {"size": 3, "rates": [1]}, "options") == Options(3, (1.0,))
    with pytest.raises(RecipeError, match="options = 3: must be a table"):
        read_dataclass(Options, 3, "options")


def test_overrides_create_tables_and_replace_list_entries():
    table = {"entries": [{"x": 1}]}
    for override in ("a.b.c=3", "entries.0.x=[1, 2]", "word=plain text", "quoted='1'"):
        apply_override(table, override)
    assert table == {"entries": [{"x": [1, 2]}], "a": {"b": {"c": 3}}, "word": "plain text", "quoted": "1"}
