"""A recipe: which mechanisms, how they are set, and how long to train. Frozen dataclasses <-> one TOML file."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from triptych.contracts import MODALITIES, Modality
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError, check_range, unknown
from triptych.objectives import OBJECTIVES
from triptych.similarities import SIMILARITIES

Geometry = Literal["sphere", "ball", "free"]
Table = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A mechanism by its name in the registry, and its settings: the arguments of its constructor."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveUse:
    """An objective, the pairs of modalities it is for (one instance each), and how much it counts."""

    name: str
    pairs: tuple[tuple[Modality, Modality], ...]
    weight: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    similarity: Part | None = None  # another than the space's own, for this objective alone


@dataclass(frozen=True)
class SpaceRecipe:
    """What is trained, saved and searched."""

    encoders: dict[Modality, Part]
    similarity: Part
    width: int = 128
    geometry: Geometry = "sphere"


@dataclass(frozen=True)
class DataRecipe:
    """Which rows to learn from."""

    manifest: str = ""
    train: str = "train"  # the split to learn from
    test: str = "test"  # the split to measure on
    allow_outside: bool = False  # may files lie outside the manifest's folder?
    workers: int = 2
    memory_mb: int = 2000  # prepared inputs kept between epochs; beyond it, files are decoded again


@dataclass(frozen=True)
class TrainingRecipe:
    """How to learn from them."""

    epochs: int = 20
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps over which the learning rate rises; then it falls as a cosine
    clip: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run, apart from the files themselves."""

    name: str
    space: SpaceRecipe
    objectives: tuple[ObjectiveUse, ...]
    about: str = ""
    data: DataRecipe = field(default_factory=DataRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    @staticmethod
    def load(name_or_path: str | Path, changes: Sequence[str] = ()) -> Recipe:
        """A recipe by its path, or by the name of one that comes with triptych, with `a.b=c` changes applied."""
        path = _find(name_or_path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"recipe {path}: cannot be read ({error})") from error
        return Recipe.parse(text, changes, where=str(path))

    @staticmethod
    def parse(text: str, changes: Sequence[str] = (), where: str = "recipe") -> Recipe:
        """A recipe from its TOML text."""
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
            raise RecipeError(f"{where}: not valid TOML: {str(error)[:200]}") from error
        for change in changes:
            _apply(table, change)
        try:
            return _recipe(table)
        except RecipeError as error:
            changed = f" with {', '.join(changes)}" if changes else ""
            raise RecipeError(f"{where}{changed}: {error}") from error

    def text(self) -> str:
        """The whole recipe as TOML, every default written out; parsing it gives an equal recipe."""
        plain = asdict(self)
        plain["space"]["similarity"] = _flat(plain["space"]["similarity"])
        plain["space"]["encoders"] = {m: _flat(part) for m, part in plain["space"]["encoders"].items()}
        plain["objectives"] = [_flat(use) for use in plain["objectives"]]
        for use in plain["objectives"]:
            similarity = use.pop("similarity")
            if similarity:
                use["similarity"] = _flat(similarity)
        return tomli_w.dumps({key: plain[key] for key in ("name", "about", "data", "space", "objectives", "training")})


def shipped() -> dict[str, Path]:
    """The recipes that come with triptych, by name."""
    package = Path(__file__).parent
    folder = next((f for f in (package / "recipes", package.parent / "recipes") if f.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def _find(name_or_path: str | Path) -> Path:
    known = shipped()
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix.lower() in {".csv", ".jsonl", ".parquet"}:
        raise RecipeError(f"{path} is a manifest, not a recipe; write: triptych train RECIPE --data {path}")
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise RecipeError(f"recipe {path}: no such file; or name one of: {', '.join(known)}")
        return path
    raise RecipeError(unknown("recipe", str(name_or_path), known))


def _apply(table: dict[str, Any], change: str) -> None:
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


def _recipe(table: Table) -> Recipe:
    _only(table, {f.name for f in fields(Recipe)}, "the recipe")
    for section in ("space", "objectives"):
        if section not in table:
            raise RecipeError(f"the section [{section}] is missing")
    uses = table["objectives"]
    if not isinstance(uses, list) or not uses:
        raise RecipeError("objectives: write at least one [[objectives]] section")
    recipe = Recipe(
        name=_value(table.get("name", "recipe"), str, "name"),
        about=_value(table.get("about", ""), str, "about"),
        data=_plain(DataRecipe, table.get("data", {}), "data"),
        space=_space(_section(table["space"], "space")),
        objectives=tuple(_objective(use, f"objectives.{i}") for i, use in enumerate(uses)),
        training=_plain(TrainingRecipe, table.get("training", {}), "training"),
    )
    _check(recipe)
    return recipe


def _space(table: Table) -> SpaceRecipe:
    _only(table, {f.name for f in fields(SpaceRecipe)}, "space")
    encoders = _section(table.get("encoders", {}), "space.encoders")
    _only(encoders, set(MODALITIES), "space.encoders")
    parts: dict[Modality, Part] = {
        m: _part(encoders[m], ENCODERS, "encoder", f"space.encoders.{m}") for m in MODALITIES if m in encoders
    }
    return SpaceRecipe(
        encoders=parts,
        similarity=_part(table.get("similarity", {"name": "cosine"}), SIMILARITIES, "similarity", "space.similarity"),
        width=_value(table.get("width", SpaceRecipe.width), int, "space.width"),
        geometry=_value(table.get("geometry", SpaceRecipe.geometry), Geometry, "space.geometry"),
    )


def _objective(table: Any, where: str) -> ObjectiveUse:
    table = _section(table, where)
    uses = {"pairs", "weight", "similarity"}
    own = {key: value for key, value in table.items() if key not in uses}
    part = _part(own, OBJECTIVES, "objective", where, also=uses)
    return ObjectiveUse(
        name=part.name,
        pairs=_value(table.get("pairs", []), tuple[tuple[Modality, Modality], ...], f"{where}.pairs"),
        weight=_value(table.get("weight", 1.0), float, f"{where}.weight"),
        settings=part.settings,
        similarity=_part(table["similarity"], SIMILARITIES, "similarity", f"{where}.similarity")
        if "similarity" in table
        else None,
    )


def _part(table: Any, registry: Mapping[str, type], kind: str, where: str, also: set[str] | None = None) -> Part:
    """A mechanism with every setting written out; the constructor's arguments are the keys."""
    table = _section(table, where)
    if "name" not in table:
        raise RecipeError(f"{where}: the {kind}'s name is missing; known: {', '.join(sorted(registry))}")
    name = _value(table["name"], str, f"{where}.name")
    if name not in registry:
        raise RecipeError(f"{where}: {unknown(kind, name, registry)}")
    signature = inspect.signature(registry[name], eval_str=True)
    arguments = [a for a in signature.parameters.values() if a.kind is a.POSITIONAL_OR_KEYWORD]
    _only(table, {"name", *(also or ()), *(a.name for a in arguments)}, where)
    settings = {a.name: _value(table.get(a.name, a.default), a.annotation, f"{where}.{a.name}") for a in arguments}
    return Part(name, settings)


def _plain(cls: type[T], table: Any, where: str) -> T:
    table = _section(table, where)
    hints = get_type_hints(cls)
    _only(table, set(hints), where)
    return cls(**{key: _value(value, hints[key], f"{where}.{key}") for key, value in table.items()})


def _section(value: Any, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{where} = {value!r}: must be a section with keys of its own")
    return value


def _only(table: Table, allowed: set[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise RecipeError(f"{where}: {unknown('key', key, allowed)}")


def _value(value: Any, kind: Any, where: str) -> Any:
    """The value if it is of the kind asked for; whole numbers pass as floats, lists as tuples."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise RecipeError(f"{where}: {unknown('value', str(value), map(str, get_args(kind)))}")
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return tuple(_value(v, inner[0], where) for v in value)
        if len(inner) == len(value):
            return tuple(_value(v, k, where) for v, k in zip(value, inner, strict=True))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    raise RecipeError(f"{where} = {value!r}: must be {words.get(kind, 'a list of the form [[a, b], …]')}")


def _check(recipe: Recipe) -> None:
    """What single values cannot show: ranges, and parts that must fit each other."""
    training, data, space = recipe.training, recipe.data, recipe.space
    if not re.fullmatch(r"\w[\w.-]{0,99}", recipe.name):
        raise RecipeError(f"name = {recipe.name[:100]!r}: must be letters, digits, _, - and dots, as it names a folder")
    ranges = [
        ("space.width", space.width, 1, 1 << 16),
        ("data.workers", data.workers, 1, 256),
        ("data.memory_mb", data.memory_mb, 0, 1 << 30),
        ("training.epochs", training.epochs, 1, 1_000_000),
        ("training.batch", training.batch, 2, 1 << 24),
        ("training.learning_rate", training.learning_rate, 1e-12, 1e3),
        ("training.weight_decay", training.weight_decay, 0, 1e3),
        ("training.warmup", training.warmup, 0, 1),
        ("training.clip", training.clip, 1e-12, 1e12),
        ("training.seed", training.seed, 0, 1 << 32),
    ]
    ranges += [(f"objectives.{i}.weight", use.weight, 0, 1e12) for i, use in enumerate(recipe.objectives)]
    for key, value, least, most in ranges:
        check_range(key, value, least, most)
    _check_parts(recipe)


def _check_parts(recipe: Recipe) -> None:
    """Encoders, pairs and objectives must fit each other."""
    space = recipe.space
    if len(space.encoders) < 2:
        raise RecipeError(f"space.encoders: at least two of {', '.join(MODALITIES)}; found {list(space.encoders)}")
    for modality, part in space.encoders.items():
        if ENCODERS[part.name].modality != modality:
            raise RecipeError(f"space.encoders.{modality}: {part.name!r} is for {ENCODERS[part.name].modality}")
    for i, use in enumerate(recipe.objectives):
        if not use.pairs:
            raise RecipeError(f'objectives.{i}: say for which pairs, for example pairs = [["audio", "text"]]')
        for a, b in use.pairs:
            if a == b or a not in space.encoders or b not in space.encoders:
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: give two of {', '.join(space.encoders)}")
            if MODALITIES.index(a) > MODALITIES.index(b):
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: write it as [{b}, {a}]")
    for modality in space.encoders:
        if not any(modality in pair for use in recipe.objectives for pair in use.pairs):
            raise RecipeError(f"space.encoders.{modality}: no objective trains it; add a pair with it, or leave it out")


def _flat(part: dict[str, Any]) -> dict[str, Any]:
    """A part as it stands in TOML: its settings beside its name."""
    return {key: value for key, value in part.items() if key != "settings"} | part["settings"]
