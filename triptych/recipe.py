"""Recipes: the mechanisms, data and training options of a training run, as frozen dataclasses and as TOML files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tomli_w

from triptych.encoders import ENCODERS
from triptych.errors import RecipeError, UsageError, describe_unknown
from triptych.interfaces import MODALITIES, Encoder, Modality
from triptych.objectives import OBJECTIVES
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
Head = Literal["linear", "mlp", "none"]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["float32", "bfloat16"]
Dimension = Annotated[int, Range(1, 1 << 16)]
Count = Annotated[int, Range(0, 1_000_000)]
LearningRateScale = Annotated[float, Range(0, 1e6)]
ObjectiveWeight = Annotated[float, Range(0, 1e12)]


@dataclass(frozen=True)
class ObjectiveConfig:
    """An objective, its weight, and its pairs of modalities; each pair gets its own instance of the objective."""

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
    pooling: Pooling = "mean"  # of an item's part vectors: the mean, or the mean and the maximum concatenated
    head: Head = "linear"  # projection: one matrix, two layers (mlp), or none if the encoders return embeddings
    hidden_dim: Dimension = 1024  # hidden dimension of head = "mlp"
    dropout: Annotated[float, Range(0, 0.99)] = 0.0  # dropout of head = "mlp"
    shared_hidden_dim: Annotated[int, Range(0, 1 << 16)] = 0  # hidden dimension of an mlp after all heads; 0 = no mlp


@dataclass(frozen=True)
class DataConfig:
    """The training data."""

    manifest: str = ""
    extra_manifests: tuple[str, ...] = ()  # further manifests to train on
    train_split: str = "train"
    valid_split: str = "valid"  # selects the best epoch; if the split has no rows, the last epoch is used
    test_split: str = "test"  # the split that `triptych evaluate` reads
    # Relative sampling frequency of the rows of a modality set, for example "image-text" = 2.0
    sampling_weights: dict[str, Annotated[float, Range(0, 1e6)]] = field(default_factory=dict)
    allow_outside: bool = False  # True: the manifest may list files outside its folder
    workers: Annotated[int, Range(1, 256)] = 2
    hop_seconds: Annotated[float, Range(0, 3600)] = 0.0  # between the starts of segments of a file; 0 = no overlap
    all_windows: bool = False  # True: train on every segment of a long file. False: on the first segment
    teacher: str = ""  # image classifier for the objective distill: efficientnet_lite0
    cache: str = ""  # folder for the outputs of frozen encoders; "" = the user's cache folder, "off" = no cache
    input_cache_mb: Annotated[int, Range(0, 1 << 30)] = 2000  # MB of memory for inputs that are kept between epochs


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop."""

    epochs: Annotated[int, Range(1, 1_000_000)] = 20
    batch_size: Annotated[int, Range(2, 1 << 24)] = 128
    grad_cache_chunk: Annotated[int, Range(0, 1 << 24)] = 0  # rows per forward pass; 0 = the full batch
    optimizer: Optimizer = "adamw"
    learning_rate: Annotated[float, Range(1e-12, 1e3)] = 1e-3  # for heads and objectives
    encoder_lr_scale: LearningRateScale = 1.0  # multiplies learning_rate for encoders
    metric_lr_scale: LearningRateScale = 1.0  # multiplies learning_rate for the similarity
    momentum: Annotated[float, Range(0, 0.999)] = 0.9  # for optimizer = "sgd"
    weight_decay: Annotated[float, Range(0, 1e3)] = 0.01
    warmup_ratio: Annotated[float, Range(0, 1)] = 0.1  # fraction of steps with linear warm-up, followed by cosine decay
    max_grad_norm: Annotated[float, Range(1e-12, 1e12)] = 1.0
    precision: Precision = "float32"  # bfloat16: encoders under autocast, losses in float32
    freeze: tuple[str, ...] = ()  # prefixes of parameter names, such as "encoders.image.blocks"
    eval_every: Count = 1  # epochs between evaluations on the validation split; 0 = never
    patience: Count = 0  # evaluations without improvement before early stopping; 0 = never stop early
    seed: Annotated[int, Range(0, 1 << 32)] = 0


@dataclass(frozen=True)
class Recipe:
    """The complete configuration of a training run."""

    name: str
    space: SpaceConfig
    objectives: tuple[ObjectiveConfig, ...]
    description: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @staticmethod
    def load(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Load a recipe by path, or by the name of a bundled recipe; overrides are like `training.epochs=3`."""
        path = _resolve_path(name_or_path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"recipe {path}: cannot be read ({error})") from error
        return Recipe.parse(text, overrides, location=str(path))

    @staticmethod
    def parse(text: str, overrides: Sequence[str] = (), location: str = "recipe") -> Recipe:
        """Parse a recipe from TOML."""
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
            raise RecipeError(f"{location}: not valid TOML: {str(error)[:200]}") from error
        for override in overrides:
            apply_override(table, override)
        try:
            return _read_recipe(table)
        except RecipeError as error:
            suffix = f" with {', '.join(overrides)}" if overrides else ""
            raise RecipeError(f"{location}{suffix}: {error}") from error

    def with_manifests(self, paths: Sequence[str | Path], allow_outside: bool = False) -> Recipe:
        """Return a copy of the recipe that trains on these manifests; the recipe's extra manifests are kept."""
        data = replace(self.data, allow_outside=allow_outside or self.data.allow_outside)
        if paths:
            first, *others = map(str, paths)
            extra_manifests = (*others, *(path for path in data.extra_manifests if path not in others))
            data = replace(data, manifest=first, extra_manifests=extra_manifests)
        return replace(self, data=data)

    def resolve_manifest(self, path: Path | None = None) -> Path:
        """Return `path` if given, otherwise the recipe's manifest; raise UsageError if the recipe has no manifest."""
        if path is None and not self.data.manifest:
            raise UsageError(f"recipe {self.name} names no manifest; give --data MANIFEST")
        return path or Path(self.data.manifest)

    def without_local_paths(self) -> Recipe:
        """Return a copy of the recipe without paths of this machine, so that it can be shared."""
        data = self.data
        names = tuple(Path(path).name for path in (data.manifest, *data.extra_manifests))
        portable_data = replace(
            data, manifest=names[0], extra_manifests=names[1:], cache="off" if data.cache == "off" else ""
        )
        encoders: dict[Modality, Component] = {
            m: Component(component.name, {key: value for key, value in component.settings.items() if key != "weights"})
            for m, component in self.space.encoders.items()
        }
        return replace(self, data=portable_data, space=replace(self.space, encoders=encoders))

    def restrict_to(self, modalities: Collection[Modality]) -> Recipe:
        """Return a copy of the recipe with only the encoders and pairs of the given modalities."""
        encoders = {m: component for m, component in self.space.encoders.items() if m in modalities}
        restricted = [
            replace(config, pairs=tuple((a, b) for a, b in config.pairs if a in modalities and b in modalities))
            for config in self.objectives
        ]
        objectives = tuple(objective for objective in restricted if objective.pairs)
        if not objectives:
            expected_pairs = ", ".join(
                sorted({f"{a}–{b}" for objective in self.objectives for a, b in objective.pairs})
            )
            raise RecipeError(
                f"the data has only {', '.join(sorted(modalities)) or 'nothing'}; the recipe trains on {expected_pairs}"
            )
        return replace(self, space=replace(self.space, encoders=encoders), objectives=objectives)

    def to_toml(self) -> str:
        """Return the recipe as TOML, including defaults; parsing the TOML gives an equal recipe."""
        table = asdict(self)
        table["space"]["similarity"] = _flatten(table["space"]["similarity"])
        table["space"]["encoders"] = {m: _flatten(component) for m, component in table["space"]["encoders"].items()}
        table["objectives"] = [_flatten(objective) for objective in table["objectives"]]
        for objective in table["objectives"]:
            similarity = objective.pop("similarity")
            if similarity:
                objective["similarity"] = _flatten(similarity)
        return tomli_w.dumps(
            {key: table[key] for key in ("name", "description", "data", "space", "objectives", "training")}
        )


def list_bundled_recipes() -> dict[str, Path]:
    """Return the bundled recipes: name to path."""
    package_folder = Path(__file__).parent
    folder = next((f for f in (package_folder / "recipes", package_folder.parent / "recipes") if f.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def _resolve_path(name_or_path: str | Path) -> Path:
    bundled = list_bundled_recipes()
    if str(name_or_path) in bundled:
        return bundled[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix.lower() in {".csv", ".jsonl", ".parquet"}:
        raise RecipeError(f"{path} is a manifest, not a recipe; run: triptych train RECIPE --data {path}")
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise RecipeError(f"recipe {path}: no such file; bundled recipes: {', '.join(bundled)}")
        return path
    raise RecipeError(describe_unknown("recipe", str(name_or_path), bundled))


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
    encoders = read_section(table.get("encoders", {}), "space.encoders")
    check_keys(encoders, set(MODALITIES), "space.encoders")
    components: dict[Modality, Component] = {
        m: read_component(encoders[m], ENCODERS, "encoder", f"space.encoders.{m}") for m in MODALITIES if m in encoders
    }
    hints = get_type_hints(SpaceConfig, include_extras=True)
    values = {
        key: read_value(table[key], hints[key], f"space.{key}")
        for key in table
        if key not in {"encoders", "similarity"}
    }
    similarity = table.get("similarity", {"name": "cosine"})
    return SpaceConfig(components, read_component(similarity, SIMILARITIES, "similarity", "space.similarity"), **values)


def _read_objective(table: Any, location: str) -> ObjectiveConfig:
    table = read_section(table, location)
    config_keys = {"pairs", "weight", "similarity"}
    settings = {key: value for key, value in table.items() if key not in config_keys}
    component = read_component(settings, OBJECTIVES, "objective", location, extra_keys=config_keys)
    return ObjectiveConfig(
        name=component.name,
        pairs=read_value(table.get("pairs", []), tuple[tuple[Modality, Modality], ...], f"{location}.pairs"),
        weight=read_value(table.get("weight", 1.0), ObjectiveWeight, f"{location}.weight"),
        settings=component.settings,
        similarity=read_component(table["similarity"], SIMILARITIES, "similarity", f"{location}.similarity")
        if "similarity" in table
        else None,
    )


def _check_components(recipe: Recipe) -> None:
    """Raise RecipeError if the recipe's name is invalid, or if encoders, pairs and objectives are incompatible."""
    space = recipe.space
    if not re.fullmatch(r"\w[\w.-]{0,99}", recipe.name):
        raise RecipeError(
            f"name = {recipe.name[:100]!r}: must be letters, digits, _, - and dots, because it is used as a folder name"
        )
    if len(space.encoders) < 2:
        raise RecipeError(f"space.encoders: need at least two of {', '.join(MODALITIES)}; got {list(space.encoders)}")
    for modality, component in space.encoders.items():
        if ENCODERS[component.name].modality != modality:
            raise RecipeError(
                f"space.encoders.{modality}: {component.name!r} is for {ENCODERS[component.name].modality}"
            )
    for i, objective in enumerate(recipe.objectives):
        if not objective.pairs:
            raise RecipeError(f'objectives.{i}: pairs are missing; for example pairs = [["audio", "text"]]')
        for a, b in objective.pairs:
            if a == b or a not in space.encoders or b not in space.encoders:
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: expected two of {', '.join(space.encoders)}")
            if MODALITIES.index(a) > MODALITIES.index(b):
                raise RecipeError(f"objectives.{i}.pairs: [{a}, {b}]: write the pair as [{b}, {a}]")
    _check_teacher(recipe)
    for modality in space.encoders:
        if not any(modality in pair for objective in recipe.objectives for pair in objective.pairs):
            raise RecipeError(
                f"space.encoders.{modality}: no objective trains this encoder; "
                f"add a pair with {modality}, or remove the encoder"
            )


def _check_teacher(recipe: Recipe) -> None:
    name = recipe.data.teacher
    teachers = [
        n
        for n, encoder in ENCODERS.items()
        if encoder.modality == "image" and encoder.class_probabilities is not Encoder.class_probabilities
    ]
    if name and name not in teachers:
        raise RecipeError(f"data.teacher: {describe_unknown('teacher', name, teachers)}")
    if not name and any(objective.name == "distill" for objective in recipe.objectives):
        raise RecipeError(f"distill needs a teacher: set data.teacher to one of {', '.join(teachers)}")


def _flatten(component: dict[str, Any]) -> dict[str, Any]:
    """Return the TOML table of a component: the name and the settings on the same level."""
    return {key: value for key, value in component.items() if key != "settings"} | component["settings"]
