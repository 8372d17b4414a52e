"""Read typed settings from TOML tables, with error messages that name the key and the allowed values."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from triptych.errors import RecipeError, check_range, describe_unknown

TomlTable = Mapping[str, Any]
T = TypeVar("T")
TYPE_DESCRIPTIONS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[str, ...]: "a list of strings",
    dict[str, float]: "a table of numbers",
}


@dataclass(frozen=True)
class Range:
    """The allowed range of a number, for use as an annotation: `Annotated[int, Range(1, 10)]`."""

    minimum: float
    maximum: float


@dataclass(frozen=True)
class Component:
    """A mechanism in a recipe: its registered name and the arguments of its constructor."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


def apply_override(table: dict[str, Any], override: str) -> None:
    """Apply an override, such as training.epochs=3 or objectives.0.temperature=0.1, to the table in place."""
    path, separator, raw_value = override.partition("=")
    if not separator or not path.strip():
        raise RecipeError(f"--set {override!r}: expected section.key=value, for example training.epochs=3")
    try:
        value = tomllib.loads(f"value = {raw_value.strip()}")["value"]
    except (ValueError, RecursionError):
        value = raw_value.strip()  # unquoted words are strings, so that users need no nested quotes in a shell
    node: Any = table
    *parents, last_key = path.strip().split(".")
    for key in parents:
        node = _descend(node, key, override)
    if isinstance(node, list):
        node[_parse_index(node, last_key, override)] = value
    elif isinstance(node, dict):
        node[last_key] = value
    else:
        raise RecipeError(f"--set {override!r}: {'.'.join(parents)} is a value, not a table")


def _descend(node: Any, key: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_parse_index(node, key, override)]
    if isinstance(node, dict):
        return node.setdefault(key, {})
    raise RecipeError(f"--set {override!r}: {key!r} cannot be set, because the key before {key!r} is not a table")


def _parse_index(entries: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise RecipeError(f"--set {override!r}: {key!r} is not an index from 0 to {len(entries) - 1}")
    return int(key)


def read_component(
    table: Any, registry: Mapping[str, type], role: str, location: str, extra_keys: set[str] | None = None
) -> Component:
    """Read a mechanism from a TOML table; settings that the table lacks get the defaults of the constructor."""
    table = read_section(table, location)
    if "name" not in table:
        raise RecipeError(f"{location}: the {role}'s name is missing; known: {', '.join(sorted(registry))}")
    name = read_value(table["name"], str, f"{location}.name")
    if name not in registry:
        raise RecipeError(f"{location}: {describe_unknown(role, name, registry)}")
    signature = inspect.signature(registry[name], eval_str=True)
    arguments = [a for a in signature.parameters.values() if a.kind is a.POSITIONAL_OR_KEYWORD]
    types = {a.name: a.annotation for a in arguments}
    check_keys(table, {"name", *(extra_keys or ()), *types}, location)
    values = {a.name: table.get(a.name, a.default) for a in arguments}
    return Component(name, {key: read_value(values[key], types[key], f"{location}.{key}") for key in types})


def read_dataclass(cls: type[T], table: Any, location: str) -> T:
    """Read a dataclass of plain values from a TOML table."""
    table = read_section(table, location)
    hints = get_type_hints(cls, include_extras=True)
    check_keys(table, set(hints), location)
    return cls(**{key: read_value(value, hints[key], f"{location}.{key}") for key, value in table.items()})


def read_section(value: Any, location: str) -> TomlTable:
    """Return the value if the value is a TOML table; otherwise raise RecipeError."""
    if not isinstance(value, Mapping):
        raise RecipeError(f"{location} = {value!r}: must be a table")
    return value


def check_keys(table: TomlTable, allowed: set[str], location: str) -> None:
    """Raise RecipeError for the first key that is not allowed."""
    for key in table:
        if key not in allowed:
            raise RecipeError(f"{location}: {describe_unknown('key', key, allowed)}")


def read_value(value: Any, expected_type: Any, location: str) -> Any:
    """Convert the value to the expected type (integer to float, list to tuple), or raise RecipeError."""
    origin, args, is_bool = get_origin(expected_type), get_args(expected_type), isinstance(value, bool)
    if origin is Annotated:
        value = read_value(value, args[0], location)
        check_range(location, value, args[1].minimum, args[1].maximum)
        return value
    if origin is Literal:
        if value in args:
            return value
        raise RecipeError(f"{location}: {describe_unknown('value', str(value), map(str, args))}")
    if origin in (UnionType, Union):
        literal = next((t for t in args if get_origin(t) is Literal and isinstance(value, str)), None)
        return read_value(value, literal or args[0], location)
    if origin is tuple and isinstance(value, list | tuple):
        types = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(types) == len(value):
            return tuple(read_value(v, t, location) for v, t in zip(value, types, strict=True))
    if origin is dict and isinstance(value, Mapping):
        return {str(key): read_value(entry, args[1], f"{location}.{key}") for key, entry in value.items()}
    if expected_type is float and isinstance(value, int | float) and not is_bool:
        return float(value)
    if isinstance(expected_type, type) and isinstance(value, expected_type) and (expected_type is bool) == is_bool:
        return value
    description = TYPE_DESCRIPTIONS.get(expected_type, "a list of the form [[a, b], …]")
    raise RecipeError(f"{location} = {value!r}: must be {description}")
