"""Recipes: frozen dataclasses and TOML files with the mechanisms, data and options of a training run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tomli_w

from triptych import plugins
from triptych.encoders import ENCODERS
from triptych.errors import PluginError, RecipeError, UsageError, describe_unknown
from triptych.heads import HEADS
from triptych.interfaces import MODALITIES, Encoder, Modality
from triptych.objectives import OBJECTIVES
from triptych.plugins import Registry
from triptych.recipe_files import find_recipe_file
from triptych.settings import (
    Component,
    Range,
    TomlTable,
    apply_override,
    check_keys,
    read_component,
    read_dataclass,
    read_section,
    read_value,
)
from triptych.similarities import SIMILARITIES

Geometry = Literal["sphere", "ball", "free"]
Pooling = Literal["mean", "mean_max"]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["float32", "bfloat16"]
Dimension = Annotated[int, Range(1, 1 << 16)]
Count = Annotated[int, Range(0, 1_000_000)]
LearningRateScale = Annotated[float, Range(0, 1e6)]
ObjectiveWeight = Annotated[float, Range(0, 1e12)]
OBJECTIVE_KEYS = ("pairs", "weight", "similarity")  # the other keys of an objective are its name and its settings


@dataclass(frozen=True)
class ObjectiveConfig:
    """An objective with its weight and its pairs of modalities; each pair gets its own instance of the objective."""

    name: str
    pairs: tuple[tuple[Modality, Modality], ...]
    weight: ObjectiveWeight = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    similarity: Component | None = None  # replaces the space's similarity for this objective


@dataclass(frozen=True)
class SpaceConfig:
    """The architecture of a space."""

    encoders: dict[Modality, Component]
    similarity: Component
    embed_dim: Dimension = 128
    geometry: Geometry = "sphere"
    pooling: Pooling = "mean"  # "mean" averages the part vectors of an item; "mean_max" also appends their maximum
    head: Component = field(default_factory=lambda: Component("linear"))  # projects pooled outputs to embed_dim
    heads: dict[Modality, Component] = field(default_factory=dict)  # replace `head` for single modalities
    residual: bool = False  # True: each head adds a linear map, 0 at first, to the output of its frozen head
    shared_hidden_dim: Annotated[int, Range(0, 1 << 16)] = 0  # hidden dimension of an MLP after the heads; 0: no MLP
    shared_dropout: Annotated[float, Range(0, 0.99)] = 0.0  # dropout probability of the MLP after the heads

    def head_for(self, modality: Modality) -> Component:
        """Return the projection head of a modality."""
        return self.heads.get(modality, self.head)


@dataclass(frozen=True)
class DataConfig:
    """The training data."""

    manifest: str = ""
    extra_manifests: tuple[str, ...] = ()  # further manifests to train on
    train_split: str = "train"
    valid_split: str = "valid"  # the split on which training selects the best epoch
    test_split: str = "test"  # the split that `triptych evaluate` reads
    # How often the rows of a modality set are sampled, relative to other rows, for example "image-text" = 2.0.
    sampling_weights: dict[str, Annotated[float, Range(0, 1e6)]] = field(default_factory=dict)
    allow_outside: bool = False  # True: the manifest may list files outside its folder
    workers: Annotated[int, Range(1, 256)] = 2
    hop_seconds: Annotated[float, Range(0, 3600)] = 0.0  # seconds between segment starts; 0: no overlap
    all_windows: bool = False  # train on every segment of a long file (True) or on the first segment (False)
    teacher: str = ""  # the image classifier for the objective distill, such as efficientnet_lite0
    cache: str = ""  # cache folder of frozen encoders' outputs; "": the user's cache folder; "off": no cache
    input_cache_mb: Annotated[int, Range(0, 1 << 30)] = 2000  # size of the in-memory cache of prepared inputs


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop."""

    epochs: Annotated[int, Range(1, 1_000_000)] = 20
    batch_size: Annotated[int, Range(2, 1 << 24)] = 128
    grad_cache_chunk: Annotated[int, Range(0, 1 << 24)] = 0  # rows per forward pass; 0: the full batch
    optimizer: Optimizer = "adamw"
    learning_rate: Annotated[float, Range(1e-12, 1e3)] = 1e-3  # of heads and objectives
    encoder_lr_scale: LearningRateScale = 1.0  # multiplies learning_rate for encoders
    metric_lr_scale: LearningRateScale = 1.0  # multiplies learning_rate for the similarity
    momentum: Annotated[float, Range(0, 0.999)] = 0.9  # used only by optimizer = "sgd"
    weight_decay: Annotated[float, Range(0, 1e3)] = 0.01
    warmup_ratio: Annotated[float, Range(0, 1)] = 0.1  # fraction of the steps with linear warm-up
    max_grad_norm: Annotated[float, Range(1e-12, 1e12)] = 1.0
    precision: Precision = "float32"  # "bfloat16" runs encoders under autocast, and computes losses in float32
    freeze: tuple[str, ...] = ()  # name prefixes of parameters that are not trained, such as "encoders.image.blocks"
    eval_every: Count = 1  # epochs between evaluations on the validation split; 0: no evaluation
    patience: Count = 0  # evaluations without improvement before early stopping; 0: no early stopping
    seed: Annotated[int, Range(0, 1 << 32)] = 0
    init: str = ""  # the ready space that training starts from: a path or a name; it replaces the table [space]
    # The weight of the penalty that keeps heads near `init`; inf: the ready space; "auto": chosen by cross-validation.
    hold: float | Literal["auto"] = "auto"
    min_steps: Count = 0  # with few pairs, the number of epochs is increased to this number of steps


@dataclass(frozen=True)
class Recipe:
    """The complete configuration of a training run. `docs/training.md` describes the keys.

    Args:
        name: The name of the recipe, and of its run folder.
        space: The encoders, the heads, the geometry and the similarity.
        objectives: The objectives, with their modality pairs, weights and settings.
        description: One sentence for `triptych recipes`.
        data: The manifests and splits.
        training: Epochs, batch size, learning rate and all other training settings.

    Example:
        >>> recipe = triptych.Recipe.load("clap", ["training.epochs=3"])
        >>> recipe.training.epochs, recipe.objectives[0].name
        (3, 'infonce')
    """

    name: str
    space: SpaceConfig
    objectives: tuple[ObjectiveConfig, ...]
    description: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @staticmethod
    def load(
        name_or_path: str | Path, overrides: Sequence[str] = (), allow_plugins: str | Iterable[str] = ()
    ) -> Recipe:
        """Load a TOML file or a bundled recipe.

        Args:
            name_or_path: The path of a TOML file, or the name of a bundled recipe.
            overrides: Changes of values, such as "training.epochs=3".
            allow_plugins: Packages whose plug-ins the recipe may use. Packages that register plug-ins are always
                allowed.

        Raises:
            RecipeError: The recipe does not exist, or a key or value is invalid.

        Example:
            >>> triptych.Recipe.load("clap", ["space.embed_dim=64"]).space.embed_dim
            64
        """
        path = find_recipe_file(name_or_path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"recipe {path}: cannot be read ({error})") from error
        return Recipe.parse(text, overrides, str(path), allow_plugins)

    @staticmethod
    def parse(
        text: str,
        overrides: Sequence[str] = (),
        location: str = "recipe",
        allow_plugins: str | Iterable[str] = (),
    ) -> Recipe:
        """Parse a recipe from TOML.

        Args:
            text: The TOML.
            overrides: Changes of values, such as "training.epochs=3".
            location: The name of the recipe in error messages.
            allow_plugins: Packages whose plug-ins the recipe may use; see `load`.

        Example:
            >>> recipe = triptych.Recipe.load("clap")
            >>> triptych.Recipe.parse(recipe.to_toml()) == recipe
            True
        """
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
            raise RecipeError(f"{location}: not valid TOML: {str(error)[:200]}") from error
        for override in overrides:
            apply_override(table, override, kept_keys=OBJECTIVE_KEYS)
        try:
            with plugins.allow(allow_plugins):
                return _read_recipe(table)
        except (RecipeError, PluginError) as error:
            suffix = f" with {', '.join(overrides)}" if overrides else ""
            raise type(error)(f"{location}{suffix}: {error}") from error

    def with_manifests(self, paths: Sequence[str | Path], allow_outside: bool = False) -> Recipe:
        """Return a copy of the recipe with other manifests.

        The first path replaces `data.manifest`. The other paths are added to `data.extra_manifests`. Without paths, the
        manifests do not change. allow_outside = True sets `data.allow_outside`.
        """
        data = replace(self.data, allow_outside=allow_outside or self.data.allow_outside)
        if paths:
            first, *others = map(str, paths)
            remaining = (path for path in data.extra_manifests if path not in others)
            data = replace(data, manifest=first, extra_manifests=(*others, *remaining))
        return replace(self, data=data)

    def resolve_manifest(self, path: Path | None = None) -> Path:
        """Return `path`, or by default the recipe's manifest; raise UsageError if neither is set."""
        if path is None and not self.data.manifest:
            raise UsageError(f"recipe {self.name} names no manifest; give --data MANIFEST")
        return path or Path(self.data.manifest)

    def without_local_paths(self) -> Recipe:
        """Return a copy of the recipe without local paths, so that the copy can be shared."""
        data = self.data
        manifest, *extra = (Path(path).name for path in (data.manifest, *data.extra_manifests))
        cache = "off" if data.cache == "off" else ""
        training = replace(self.training, init=Path(self.training.init).name)
        data = replace(data, manifest=manifest, extra_manifests=tuple(extra), cache=cache)
        return replace(self, data=data, training=training)

    def restrict_to(self, modalities: Collection[Modality]) -> Recipe:
        """Return a copy of the recipe that keeps only the encoders and pairs of `modalities`."""
        keeps_all = bool(self.training.init)  # a ready space keeps its other modalities
        encoders = {m: component for m, component in self.space.encoders.items() if keeps_all or m in modalities}
        pairs = [tuple(pair for pair in config.pairs if set(pair) <= set(modalities)) for config in self.objectives]
        objectives = tuple(replace(c, pairs=p) for c, p in zip(self.objectives, pairs, strict=True) if p)
        if not objectives:
            present = ", ".join(sorted(modalities)) or "nothing"
            expected = ", ".join(sorted({f"{a}–{b}" for config in self.objectives for a, b in config.pairs}))
            raise RecipeError(f"the data has only {present}; the recipe trains on {expected}")
        heads = {m: component for m, component in self.space.heads.items() if m in encoders}
        return replace(self, space=replace(self.space, encoders=encoders, heads=heads), objectives=objectives)

    def plugin_packages(self) -> dict[str, str]:
        """Return a dict from name to version of the packages whose plug-ins the recipe uses; the version may be ""."""
        space, similarities = self.space, [config.similarity for config in self.objectives]
        used = [(ENCODERS, component.name) for component in space.encoders.values()]
        used += [(ENCODERS, self.data.teacher)] if self.data.teacher else []
        used += [(HEADS, space.head_for(modality).name) for modality in space.encoders]
        used += [(SIMILARITIES, space.similarity.name)]
        used += [(OBJECTIVES, config.name) for config in self.objectives]
        used += [(SIMILARITIES, component.name) for component in similarities if component]
        return dict(sorted(package for registry, name in used if (package := registry.find_package(name))))

    def to_toml(self) -> str:
        """Return the recipe as TOML, including defaults; parsing the TOML gives an equal recipe.

        Example:
            >>> triptych.Recipe.load("clap").to_toml().splitlines()[0]
            'name = "clap"'
        """
        table = asdict(self)
        for key in ("similarity", "head"):
            table["space"][key] = _flatten(table["space"][key])
        for key in ("encoders", "heads"):
            table["space"][key] = {m: _flatten(component) for m, component in table["space"][key].items()}
        table["objectives"] = [_flatten(objective) for objective in table["objectives"]]
        for objective in table["objectives"]:
            if similarity := objective.pop("similarity"):
                objective["similarity"] = _flatten(similarity)
        order = ("name", "description", "data", "space", "objectives", "training")
        return tomli_w.dumps({key: table[key] for key in order})


def check_recipe_name(name: str) -> None:
    """Raise RecipeError if a name contains characters that a folder's name should not have."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        problem = "must be letters, digits, _, - and dots, because a folder gets this name"
        raise RecipeError(f"name = {name[:100]!r}: {problem}")


def _read_recipe(table: TomlTable) -> Recipe:
    check_keys(table, {f.name for f in fields(Recipe)}, "the recipe")
    for section in ("space", "objectives"):
        if section not in table:
            raise RecipeError(f"the table [{section}] is missing")
    objectives = table["objectives"]
    if not isinstance(objectives, list) or not objectives:
        raise RecipeError("objectives: need at least one [[objectives]] table")
    recipe = Recipe(
        name=read_value(table.get("name", "recipe"), str, "name"),
        description=read_value(table.get("description", ""), str, "description"),
        data=read_dataclass(DataConfig, table.get("data", {}), "data"),
        space=_read_space(read_section(table["space"], "space")),
        objectives=tuple(_read_objective(objective, f"objectives.{i}") for i, objective in enumerate(objectives)),
        training=read_dataclass(TrainingConfig, table.get("training", {}), "training"),
    )
    _check_components(recipe)
    return recipe


def _read_space(table: TomlTable) -> SpaceConfig:
    check_keys(table, {f.name for f in fields(SpaceConfig)}, "space")
    encoders = _read_components(table, "encoders", ENCODERS, MODALITIES)
    heads = _read_components(table, "heads", HEADS, encoders)
    hints = get_type_hints(SpaceConfig, include_extras=True)
    plain_keys = [key for key in table if key not in {"encoders", "similarity", "head", "heads"}]
    values = {key: read_value(table[key], hints[key], f"space.{key}") for key in plain_keys}
    similarity = read_component(table.get("similarity", "cosine"), SIMILARITIES, "space.similarity")
    head = read_component(table.get("head", "linear"), HEADS, "space.head")
    return SpaceConfig(encoders, similarity, head=head, heads=heads, **values)


def _read_components(
    table: TomlTable, key: str, registry: Registry[Any], modalities: Iterable[Modality]
) -> dict[Modality, Component]:
    """Read the components of single modalities from the table space.KEY."""
    components = read_section(table.get(key, {}), f"space.{key}")
    check_keys(components, set(modalities), f"space.{key}")
    return {m: read_component(components[m], registry, f"space.{key}.{m}") for m in modalities if m in components}


def _read_objective(table: Any, location: str) -> ObjectiveConfig:
    table = read_section(table, location)
    component = read_component(table, OBJECTIVES, location, extra_keys=OBJECTIVE_KEYS)
    pairs = read_value(table.get("pairs", []), tuple[tuple[Modality, Modality], ...], f"{location}.pairs")
    weight = read_value(table.get("weight", 1.0), ObjectiveWeight, f"{location}.weight")
    similarity = None
    if "similarity" in table:
        similarity = read_component(table["similarity"], SIMILARITIES, f"{location}.similarity")
    return ObjectiveConfig(component.name, pairs, weight, component.settings, similarity)


def _check_components(recipe: Recipe) -> None:
    """Raise RecipeError if the recipe's name is invalid, or if encoders, pairs and objectives are incompatible."""
    space = recipe.space
    check_recipe_name(recipe.name)
    if len(space.encoders) < 2:
        raise RecipeError(f"space.encoders: need at least two of {', '.join(MODALITIES)}; got {list(space.encoders)}")
    for modality, component in space.encoders.items():
        supported = ENCODERS[component.name].modality
        if supported != modality:
            raise RecipeError(f"space.encoders.{modality}: {component.name!r} is for {supported}")
    for i, objective in enumerate(recipe.objectives):
        if not objective.pairs:
            raise RecipeError(f'objectives.{i}: pairs are missing; for example pairs = [["audio", "text"]]')
        for a, b in objective.pairs:
            if a == b or a not in space.encoders or b not in space.encoders:
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: expected two of {', '.join(space.encoders)}")
            if MODALITIES.index(a) > MODALITIES.index(b):
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: write the pair as [{b}, {a}]")
    _check_teacher(recipe)
    hold = recipe.training.hold
    if hold != "auto" and not hold >= 0:
        raise RecipeError(f'training.hold = {hold}: must be a number of at least 0, inf or "auto"')
    for modality in space.encoders:
        if not recipe.training.init and not any(
            modality in pair for objective in recipe.objectives for pair in objective.pairs
        ):
            remedy = f"add a pair with {modality}, or remove the encoder"
            raise RecipeError(f"space.encoders.{modality}: no objective trains this encoder; {remedy}")


def _check_teacher(recipe: Recipe) -> None:
    name = recipe.data.teacher
    teachers = [n for n, encoder in ENCODERS.items() if _is_teacher(encoder)]
    if name and not (ENCODERS.knows(name) and _is_teacher(ENCODERS[name])):
        raise RecipeError(f"data.teacher: {describe_unknown('teacher', name, teachers)}")
    if not name and any(config.name == "distill" for config in recipe.objectives):
        raise RecipeError(f"distill needs a teacher: set data.teacher to one of {', '.join(teachers)}")


def _is_teacher(encoder: type[Encoder]) -> bool:
    return encoder.modality == "image" and encoder.class_probabilities is not Encoder.class_probabilities


def _flatten(component: dict[str, Any]) -> dict[str, Any]:
    """Return the TOML table of a component; the name and the settings are on the same level."""
    return {key: value for key, value in component.items() if key != "settings"} | component["settings"]
