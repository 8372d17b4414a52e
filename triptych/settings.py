"""Read typed settings from TOML tables, with error messages that name the key and the allowed values."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from triptych.errors import PluginError, RecipeError, check_range, describe_unknown
from triptych.plugins import Registry

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
    """A mechanism in a recipe: its name in a registry (or module:Class) and the arguments of its constructor."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


def apply_override(table: dict[str, Any], override: str, kept_keys: Sequence[str] = ()) -> None:
    """Apply an override, such as training.epochs=3 or objectives.0.temperature=0.1, to the table in place.

    A table replaces the whole previous table. If it replaces an entry of a list, such as objectives.0={name="triplet"},
    the entry's previous values of `kept_keys` stay unless the new table sets these keys.
    """
    path, separator, raw_value = override.partition("=")
    if not separator or not path.strip():
        raise RecipeError(f"--set {override!r}: expected section.key=value, for example training.epochs=3")
    value = parse_value(raw_value, f"--set {override!r}")
    node: Any = table
    *parents, last_key = path.strip().split(".")
    for key in parents:
        node = _descend(node, key, override)
    if isinstance(node, list):
        index = _parse_index(node, last_key, override)
        if isinstance(value, dict) and isinstance(node[index], dict):
            value = {key: node[index][key] for key in kept_keys if key in node[index]} | value
        node[index] = value
    elif isinstance(node, dict):
        node[last_key] = value
    else:
        raise RecipeError(f"--set {override!r}: {'.'.join(parents)} is a value, not a table")


def parse_value(text: str, location: str) -> Any:
    """Parse a TOML value of the command line; words without quotes are strings, so a shell needs no nested quotes."""
    text = text.strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        if text.startswith(("{", "[")):
            problem = "not a valid TOML table or list; write strings in quotes"
            raise RecipeError(f"{location}: {problem}, for example '{{name=\"triplet\"}}'") from error
        return text


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


def read_component(table: Any, registry: Registry[Any], location: str, extra_keys: Collection[str] = ()) -> Component:
    """Read a mechanism from a TOML table, or from a string that is its name.

    Settings that the table lacks get the defaults of the constructor.
    """
    table = read_section({"name": table} if isinstance(table, str) else table, location)
    if "name" not in table:
        names = ", ".join(registry.known_names())
        raise RecipeError(f"{location}: the {registry.role}'s name is missing; known: {names}")
    name = read_value(table["name"], str, f"{location}.name")
    try:
        arguments = read_arguments(registry, name, {"name", *extra_keys})
    except (RecipeError, PluginError) as error:
        raise type(error)(f"{location}: {error}") from error
    check_keys(table, {"name", *extra_keys, *arguments}, location)
    values = {key: table.get(key, argument.default) for key, argument in arguments.items()}
    for key, value in values.items():
        if value is inspect.Parameter.empty:
            raise RecipeError(f"{location}: the key {key} is missing; {name} has no default for it")
    return Component(name, {k: read_value(v, arguments[k].annotation, f"{location}.{k}") for k, v in values.items()})


def read_arguments(registry: Registry[Any], name: str, reserved: Collection[str]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a mechanism's constructor that are keys in a recipe.

    Raise PluginError if an argument of a plug-in has no type, a reserved name, or the default None.
    """
    try:
        parameters = inspect.signature(registry[name], eval_str=True).parameters
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
        problem = f"{name}: the types of the arguments of its constructor cannot be evaluated ({error})"
        raise PluginError(f"{problem}; import the types at run time, not under TYPE_CHECKING") from error
    if missing := [key for key in registry.space_arguments if key not in parameters]:
        raise PluginError(f"{name}: the constructor of a {registry.role} needs the arguments {', '.join(missing)}")
    arguments = {k: a for k, a in parameters.items() if a.kind in (a.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)}
    arguments = {key: argument for key, argument in arguments.items() if key not in registry.space_arguments}
    for key, argument in arguments.items():
        problem = f"{name}: the argument {key} of its constructor"
        if argument.annotation is argument.empty:
            raise PluginError(f"{problem} has no type; annotate it, for example {key}: float = 0.5")
        if key in reserved:
            raise PluginError(f"{problem} has a name that recipes reserve; rename it")
        if argument.default is None:
            raise PluginError(f"{problem} has the default None, which TOML cannot express; give another default")
    return arguments


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
