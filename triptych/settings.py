"""Settings as they stand in TOML, read with the kinds they should have; a mistake says what is allowed."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from triptych.errors import RecipeError, unknown

Table = Mapping[str, Any]
T = TypeVar("T")
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    tuple[str, ...]: "a list of texts",
    dict[str, float]: "a section of numbers",
}


@dataclass(frozen=True)
class Part:
    """A mechanism by its name in the registry, and its settings: the arguments of its constructor."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


def apply_change(table: dict[str, Any], change: str) -> None:
    """Set one value in place: training.epochs=3, objectives.0.temperature=0.1."""
    path, equals, raw = change.partition("=")
    if not equals or not path.strip():
        raise RecipeError(f"--set {change!r}: write it as section.key=value, for example training.epochs=3")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()  # a bare word is a string, so that nobody has to quote quotes in a shell
    place: Any = table
    *way, last = path.strip().split(".")
    for key in way:
        place = _step(place, key, change)
    if isinstance(place, list):
        place[_index(place, last, change)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise RecipeError(f"--set {change!r}: {'.'.join(way)} is a value, not a section")


def _step(place: Any, key: str, change: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, key, change)]
    if isinstance(place, dict):
        return place.setdefault(key, {})
    raise RecipeError(f"--set {change!r}: nothing can stand below {key!r}: what is above it is a value")


def _index(place: list[Any], key: str, change: str) -> int:
    if not key.isdecimal() or int(key) >= len(place):
        raise RecipeError(f"--set {change!r}: {key!r} is not one of the entries 0 to {len(place) - 1}")
    return int(key)


def read_part(table: Any, registry: Mapping[str, type], kind: str, where: str, also: set[str] | None = None) -> Part:
    """A mechanism with every setting written out; the constructor's arguments are the keys."""
    table = read_section(table, where)
    if "name" not in table:
        raise RecipeError(f"{where}: the {kind}'s name is missing; known: {', '.join(sorted(registry))}")
    name = read_value(table["name"], str, f"{where}.name")
    if name not in registry:
        raise RecipeError(f"{where}: {unknown(kind, name, registry)}")
    signature = inspect.signature(registry[name], eval_str=True)
    arguments = [a for a in signature.parameters.values() if a.kind is a.POSITIONAL_OR_KEYWORD]
    refuse_others(table, {"name", *(also or ()), *(a.name for a in arguments)}, where)
    settings = {a.name: read_value(table.get(a.name, a.default), a.annotation, f"{where}.{a.name}") for a in arguments}
    return Part(name, settings)


def read_plain(cls: type[T], table: Any, where: str) -> T:
    """A dataclass of plain values from its section."""
    table = read_section(table, where)
    hints = get_type_hints(cls)
    refuse_others(table, set(hints), where)
    return cls(**{key: read_value(value, hints[key], f"{where}.{key}") for key, value in table.items()})


def read_section(value: Any, where: str) -> Table:
    """The value, if it is a section."""
    if not isinstance(value, Mapping):
        raise RecipeError(f"{where} = {value!r}: must be a section with keys of its own")
    return value


def refuse_others(table: Table, allowed: set[str], where: str) -> None:
    """An error for the first key that is not allowed."""
    for key in table:
        if key not in allowed:
            raise RecipeError(f"{where}: {unknown('key', key, allowed)}")


def read_value(value: Any, kind: Any, where: str) -> Any:
    """The value if it is of the kind asked for; whole numbers pass as floats, lists as tuples."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise RecipeError(f"{where}: {unknown('value', str(value), map(str, get_args(kind)))}")
    if get_origin(kind) in (UnionType, Union):
        literal = next((k for k in get_args(kind) if get_origin(k) is Literal and isinstance(value, str)), None)
        return read_value(value, literal or get_args(kind)[0], where)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(read_value(v, inner[0], where) for v in value)
        if len(inner) == len(value):
            return tuple(read_value(v, k, where) for v, k in zip(value, inner, strict=True))
    if get_origin(kind) is dict and isinstance(value, Mapping):
        inner = get_args(kind)[1]
        return {str(key): read_value(one, inner, f"{where}.{key}") for key, one in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    raise RecipeError(f"{where} = {value!r}: must be {WORDS.get(kind, 'a list of the form [[a, b], …]')}")
