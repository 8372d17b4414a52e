"""A recipe: which mechanisms, how they are set, and how long to train. Frozen dataclasses <-> one TOML file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w

from triptych.contracts import MODALITIES, Encoder, Modality
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError, check_range, unknown
from triptych.objectives import OBJECTIVES
from triptych.settings import Part, Table, apply_change, read_part, read_plain, read_section, read_value, refuse_others
from triptych.similarities import SIMILARITIES

Geometry = Literal["sphere", "ball", "free"]
Pooling = Literal["mean", "mean_max"]
Head = Literal["linear", "mlp", "none"]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["float32", "bfloat16"]


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
    pooling: Pooling = "mean"  # what becomes of an item's parts: their mean, or mean and maximum side by side
    head: Head = "linear"  # from there to the space: a matrix, two layers, or nothing where encoders end in it already
    hidden: int = 1024  # width between the two layers of an mlp
    dropout: float = 0.0  # share of an mlp's hidden values left out in training
    shared: int = 0  # hidden width of two layers on top that all modalities share; 0 = none


@dataclass(frozen=True)
class DataRecipe:
    """Which rows to learn from."""

    manifest: str = ""
    also: tuple[str, ...] = ()  # further manifests, whose rows are learned from as well
    train: str = "train"  # the split to learn from
    valid: str = "valid"  # the split by which the best epoch is chosen; where no row has it, the last is taken
    test: str = "test"  # the split to measure on
    weights: dict[str, float] = field(default_factory=dict)  # how often a kind of row is drawn: "image-text" = 2.0
    allow_outside: bool = False  # may files lie outside the manifest's folder?
    workers: int = 2
    hop: float = 0.0  # seconds between windows of what is longer than its encoder hears at once; 0 = side by side
    windows: bool = False  # learn from every window of a long sound or film; else from its first
    teacher: str = ""  # an image encoder that was taught classes, for distill: efficientnet_lite0
    cache: str = ""  # folder for the features of frozen encoders; "" = the user's own, "off" = none
    memory_mb: int = 2000  # prepared inputs kept between epochs; beyond it, files are decoded again


@dataclass(frozen=True)
class TrainingRecipe:
    """How to learn from them."""

    epochs: int = 20
    batch: int = 128
    chunk: int = 0  # rows that go through the encoders at once; 0 = the whole batch. The gradient is the same
    optimizer: Optimizer = "adamw"
    learning_rate: float = 1e-3  # of heads and objectives
    encoder_rate: float = 1.0  # times that for encoders
    metric_rate: float = 1.0  # times that for what the similarity learns
    momentum: float = 0.9  # of sgd
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps over which the learning rate rises; then it falls as a cosine
    clip: float = 1.0
    precision: Precision = "float32"  # bfloat16: encoders under autocast, losses as ever in float32
    freeze: tuple[str, ...] = ()  # parameters whose names begin so stay as they are, such as "encoders.image.blocks"
    validate: int = 1  # epochs between two looks at the validation split; 0 = never
    patience: int = 0  # looks without a better score before training stops; 0 = it never stops early
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
            apply_change(table, change)
        try:
            return _recipe(table)
        except RecipeError as error:
            changed = f" with {', '.join(changes)}" if changes else ""
            raise RecipeError(f"{where}{changed}: {error}") from error

    def for_others(self) -> Recipe:
        """The recipe without where things lay on this machine."""
        data = self.data
        names = tuple(Path(path).name for path in (data.manifest, *data.also))
        here = replace(data, manifest=names[0], also=names[1:], cache="off" if data.cache == "off" else "")
        encoders: dict[Modality, Part] = {
            m: Part(part.name, {key: value for key, value in part.settings.items() if key != "weights"})
            for m, part in self.space.encoders.items()
        }
        return replace(self, data=here, space=replace(self.space, encoders=encoders))

    def only(self, there: Collection[Modality]) -> Recipe:
        """The recipe for data that has only these modalities: encoders and pairs of others are left out."""
        encoders = {m: part for m, part in self.space.encoders.items() if m in there}
        uses = [
            replace(u, pairs=tuple((a, b) for a, b in u.pairs if a in there and b in there)) for u in self.objectives
        ]
        kept = tuple(use for use in uses if use.pairs)
        if not kept:
            wanted = ", ".join(sorted({f"{a}–{b}" for use in self.objectives for a, b in use.pairs}))
            raise RecipeError(f"the data has only {', '.join(sorted(there)) or 'nothing'}; the recipe learns {wanted}")
        return replace(self, space=replace(self.space, encoders=encoders), objectives=kept)

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


def _recipe(table: Table) -> Recipe:
    refuse_others(table, {f.name for f in fields(Recipe)}, "the recipe")
    for section in ("space", "objectives"):
        if section not in table:
            raise RecipeError(f"the section [{section}] is missing")
    uses = table["objectives"]
    if not isinstance(uses, list) or not uses:
        raise RecipeError("objectives: write at least one [[objectives]] section")
    recipe = Recipe(
        name=read_value(table.get("name", "recipe"), str, "name"),
        about=read_value(table.get("about", ""), str, "about"),
        data=read_plain(DataRecipe, table.get("data", {}), "data"),
        space=_space(read_section(table["space"], "space")),
        objectives=tuple(_objective(use, f"objectives.{i}") for i, use in enumerate(uses)),
        training=read_plain(TrainingRecipe, table.get("training", {}), "training"),
    )
    _check(recipe)
    return recipe


def _space(table: Table) -> SpaceRecipe:
    refuse_others(table, {f.name for f in fields(SpaceRecipe)}, "space")
    encoders = read_section(table.get("encoders", {}), "space.encoders")
    refuse_others(encoders, set(MODALITIES), "space.encoders")
    parts: dict[Modality, Part] = {
        m: read_part(encoders[m], ENCODERS, "encoder", f"space.encoders.{m}") for m in MODALITIES if m in encoders
    }
    hints = get_type_hints(SpaceRecipe)
    plain = {
        key: read_value(table[key], hints[key], f"space.{key}")
        for key in table
        if key not in {"encoders", "similarity"}
    }
    similarity = table.get("similarity", {"name": "cosine"})
    return SpaceRecipe(parts, read_part(similarity, SIMILARITIES, "similarity", "space.similarity"), **plain)


def _objective(table: Any, where: str) -> ObjectiveUse:
    table = read_section(table, where)
    uses = {"pairs", "weight", "similarity"}
    own = {key: value for key, value in table.items() if key not in uses}
    part = read_part(own, OBJECTIVES, "objective", where, also=uses)
    return ObjectiveUse(
        name=part.name,
        pairs=read_value(table.get("pairs", []), tuple[tuple[Modality, Modality], ...], f"{where}.pairs"),
        weight=read_value(table.get("weight", 1.0), float, f"{where}.weight"),
        settings=part.settings,
        similarity=read_part(table["similarity"], SIMILARITIES, "similarity", f"{where}.similarity")
        if "similarity" in table
        else None,
    )


def _check(recipe: Recipe) -> None:
    """What single values cannot show: ranges, and parts that must fit each other."""
    training, data, space = recipe.training, recipe.data, recipe.space
    if not re.fullmatch(r"\w[\w.-]{0,99}", recipe.name):
        raise RecipeError(f"name = {recipe.name[:100]!r}: must be letters, digits, _, - and dots, as it names a folder")
    ranges = [
        ("space.width", space.width, 1, 1 << 16),
        ("space.hidden", space.hidden, 1, 1 << 16),
        ("space.dropout", space.dropout, 0, 0.99),
        ("space.shared", space.shared, 0, 1 << 16),
        ("data.workers", data.workers, 1, 256),
        ("data.hop", data.hop, 0, 3600),
        ("data.memory_mb", data.memory_mb, 0, 1 << 30),
        ("training.epochs", training.epochs, 1, 1_000_000),
        ("training.batch", training.batch, 2, 1 << 24),
        ("training.chunk", training.chunk, 0, 1 << 24),
        ("training.learning_rate", training.learning_rate, 1e-12, 1e3),
        ("training.weight_decay", training.weight_decay, 0, 1e3),
        ("training.encoder_rate", training.encoder_rate, 0, 1e6),
        ("training.metric_rate", training.metric_rate, 0, 1e6),
        ("training.momentum", training.momentum, 0, 0.999),
        ("training.validate", training.validate, 0, 1_000_000),
        ("training.patience", training.patience, 0, 1_000_000),
        ("training.warmup", training.warmup, 0, 1),
        ("training.clip", training.clip, 1e-12, 1e12),
        ("training.seed", training.seed, 0, 1 << 32),
    ]
    ranges += [(f"data.weights.{kind}", weight, 0, 1e6) for kind, weight in data.weights.items()]
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
    _check_teacher(recipe)
    for modality in space.encoders:
        if not any(modality in pair for use in recipe.objectives for pair in use.pairs):
            raise RecipeError(f"space.encoders.{modality}: no objective trains it; add a pair with it, or leave it out")


def _check_teacher(recipe: Recipe) -> None:
    name = recipe.data.teacher
    able = [n for n, encoder in ENCODERS.items() if encoder.modality == "image" and encoder.judge is not Encoder.judge]
    if name and name not in able:
        raise RecipeError(f"data.teacher: {unknown('teacher', name, able)}")
    if not name and any(use.name == "distill" for use in recipe.objectives):
        raise RecipeError(f"distill needs a teacher: set data.teacher to one of {', '.join(able)}")


def _flat(part: dict[str, Any]) -> dict[str, Any]:
    """A part as it stands in TOML: its settings beside its name."""
    return {key: value for key, value in part.items() if key != "settings"} | part["settings"]
