"""Save and load a space as one safetensors file, or as a folder in the layout of the Hugging Face hub.

The space file contains the weights. The header of the space file contains the recipe, the encoders' extra files
(tokenizers), the packages of plug-ins and the training history. Saving replaces the space file atomically, so the
weights and the header always belong to the same space.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from triptych import __version__, hub, plugins
from triptych.composite import refuse_to_save
from triptych.composite_files import find_composite
from triptych.data.cache import fingerprint_encoder
from triptych.devices import EmbeddingPrecision, Runtime, choose_execution
from triptych.encoders import ENCODERS
from triptych.encoders.joint_models import JointModel, find_model
from triptych.encoders.unavailable import UnavailableEncoder
from triptych.errors import CheckpointError, PluginError, RecipeError
from triptych.execution.backends import apply_execution
from triptych.files import atomic_write, write_text
from triptych.interfaces import Encoder, Modality
from triptych.model_card import render_model_card
from triptych.recipe import Geometry, Recipe, SpaceConfig
from triptych.recipe_files import list_bundled_recipes
from triptych.settings import Component
from triptych.space import Space
from triptych.spaces.default import choose_default_space
from triptych.spaces.known import STARTER
from triptych.spaces.presence import check_space, no_space_error
from triptych.starter import fingerprint_starter, is_starter, load_starter

SPACE_FILE, PRETRAINED_FILE, CONFIG_FILE = "space.safetensors", "model.safetensors", "config.json"
MODEL_CARD_FILE, RECIPE_FILE = "README.md", "recipe.toml"
MODULES_FILE = "modules.json"  # marks the folder of a sentence-transformers model
HEADER_KEY, FORMAT_VERSION = "triptych", "space-5"
WEIGHTS_PREFIX = "space."  # name prefix of the space's weights; tensors of a trainer have other prefixes


def save(
    space: Space, path: Path, extra_tensors: dict[str, Tensor] | None = None, extra_header: dict[str, Any] | None = None
) -> None:
    """Write a space to one file. A trainer can add its own tensors and header entries."""
    refuse_to_save(space)
    header = {
        "format_version": FORMAT_VERSION,
        "recipe": space.recipe.to_toml(),
        "files": {m: space.encoder(m).extra_files() for m in space.modalities},
        "frozen": {m: fingerprint_encoder(space.encoder(m)) for m in space.frozen_modalities},
        "plugins": space.recipe.plugin_packages(),
        "history": space.history,
    }
    tensors = {f"{WEIGHTS_PREFIX}{name}": value for name, value in space.state_dict_without_frozen().items()}
    contiguous = {name: value.contiguous() for name, value in (tensors | (extra_tensors or {})).items()}
    # The metadata has one key only. safetensors writes several keys in random order, but equal spaces must give equal
    # files.
    metadata = {HEADER_KEY: json.dumps(header | (extra_header or {}), sort_keys=True)}
    try:
        with atomic_write(path) as temp_path:
            # `safetensors.torch.save_file` is not used, because a killed process would leave its temporary file behind.
            temp_path.write_bytes(to_bytes(contiguous, metadata=metadata))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error}); is the disk full?") from error


def load(
    path: str | Path | None = None, allow_plugins: str | Iterable[str] = (), *,
    device: str | torch.device | None = None, precision: EmbeddingPrecision | None = None,
    runtime: Runtime | None = None,
) -> Space:  # fmt: skip
    """Load a space for inference.

    Args:
        path: A run folder, a folder that `Space.save_pretrained` wrote, a space file, or the name of a pretrained
            model. A joint model of the transformers library (CLIP, SigLIP, CLAP, EmbeddingGemma 2) is a folder or
            hf:NAME, where NAME is a folder or a name on the Hugging Face hub. A model of sentence-transformers is
            st:NAME. Settings of the encoders follow a question mark, such as
            hf:google/embeddinggemma-2?truncate_dim=256&dtype=bfloat16. The space "starter" needs no training. Names
            joined by a plus sign, such as hf:CLIP+hf:CLAP, are the direct sum of these spaces; a folder of `triptych
            bridge` is one, too. Default: the space in TRIPTYCH_SPACE or of `triptych spaces use`, else the best space
            on this machine; a line on stderr says which.
        allow_plugins: Packages whose plug-ins the space may import. Packages that register plug-ins are always allowed.
        device: Where `encode` and all that embeds computes: "auto" (cuda, else mps, else cpu), "cpu", "cuda", "cuda:1",
            "mps". Default: $TRIPTYCH_DEVICE, or "auto".
        precision: The precision of the encoders on a GPU: "float32" (default), "bfloat16" or "float16".
        runtime: "pytorch" (default), or "onnx" for ONNX Runtime on the CPU; docs/devices.md lists the encoders.

    Returns:
        The space, in evaluation mode.

    Raises:
        UsageError: The device is not available, or the precision or the runtime does not fit the space.
        CheckpointError: The space or the model does not exist, is damaged or has no embeddings.
        PluginError: The space needs a plug-in that is not installed or not allowed.
        RecipeError: A setting is invalid, or a library is missing.

    Example:
        >>> space = triptych.load("runs/mine")
        >>> space.modalities
        ('image', 'audio', 'text')
    """
    execution = choose_execution(device, precision, runtime)
    execution.choose_device()  # raises an error before the space is read
    with plugins.allow(allow_plugins):
        space = load_with_extras(choose_default_space() if path is None else path)[0]
    return apply_execution(space, execution)


def load_with_extras(path: str | Path) -> tuple[Space, dict[str, Tensor], dict[str, Any]]:
    """Return the space in a file, the tensors of the file that are not weights of the space, and the file's header."""
    if is_starter(path):
        return load_starter(), {}, {}
    if composite := find_composite(path):
        composite.check_fingerprints([compute_fingerprint(name) for name in composite.members])
        return composite.join([load_with_extras(name)[0] for name in composite.members]), {}, {}
    file = _find_space(path)
    if isinstance(file, JointModel):
        space, extra_tensors, header = _load_joint_model(file), dict[str, Tensor](), dict[str, Any]()
        space.name_or_path = str(file)
    else:
        tensors, header = _read_safetensors(file)
        extra_tensors = {name: value for name, value in tensors.items() if not name.startswith(WEIGHTS_PREFIX)}
        space = _restore_space(file, tensors, header)
        # Only the folder is resolved: in the cache of the hub, the file is a link to a file with another name.
        space.name_or_path = str(file.parent.resolve() / file.name)
    return space, extra_tensors, header


def save_pretrained(space: Space, folder: str | Path) -> None:
    """Write a space in the layout of the Hugging Face hub; `Space.save_pretrained` documents the files."""
    folder, recipe = Path(folder), space.recipe.without_local_paths()
    save(space, folder / PRETRAINED_FILE, extra_header={"recipe": recipe.to_toml()})
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    config = {
        "model_type": "triptych",
        "architectures": ["Space"],
        "triptych_version": __version__,
        "modalities": list(encoders),
        "embed_dim": recipe.space.embed_dim,
        "geometry": recipe.space.geometry,
        "similarity": recipe.space.similarity.name,
        "encoders": {m: component.name for m, component in recipe.space.encoders.items()},
        "plugins": recipe.plugin_packages(),
    }
    files = {CONFIG_FILE: json.dumps(config, indent=2) + "\n", RECIPE_FILE: recipe.to_toml()}
    for modality, encoder in encoders.items():
        for name, text in encoder.extra_files().items():
            files[name if modality == "text" else f"{modality}_{name}"] = text
    for name, text in (files | {MODEL_CARD_FILE: render_model_card(recipe, encoders, space.history)}).items():
        write_text(folder / name, text)


def push_to_hub(space: Space, name: str, private: bool, token: str | None, branch: str | None) -> str:
    """Upload a space to the Hugging Face hub in one commit, and return the address of the commit."""
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(space, folder)
        return hub.upload(folder, name, private, token, branch)


def resolve_path(path: str | Path) -> Path:
    """Return the path of the space file for a file or a folder; for a joint model, return its folder.

    A model that is named with the prefix `hf:` or `st:` is downloaded from the Hugging Face hub on first use. For a
    composite space, return its folder, or the path of the first member.
    """
    if is_starter(path):
        return list_bundled_recipes()[STARTER]
    if composite := find_composite(path):
        members = [resolve_path(name) for name in composite.members]
        return composite.folder or members[0]
    file = _find_space(path)
    return file.folder if isinstance(file, JointModel) else file


def compute_fingerprint(path: str | Path) -> str:
    """Return a hash of a saved space; each collection stores the hash of the space that embedded the items."""
    if is_starter(path):
        return fingerprint_starter()
    if composite := find_composite(path):
        return composite.compute_fingerprint([compute_fingerprint(name) for name in composite.members])
    file = _find_space(path)
    if isinstance(file, JointModel):
        return file.compute_fingerprint()
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def _find_space(path: str | Path) -> Path | JointModel:
    """Return the file of a space or a joint model. Raise CheckpointError if there is neither."""
    model = find_model(path)
    if model is None:
        check_space(path)
        return Path(path).expanduser()
    for file in (model.folder / SPACE_FILE, model.folder / PRETRAINED_FILE):
        if file.is_file() and (file.name == SPACE_FILE or _is_triptych_model(model.folder)):
            if model.settings:
                raise CheckpointError(f"{path}: only a joint model has settings; {file} is a space of triptych")
            return file
    if not (model.folder / CONFIG_FILE).is_file() and not (model.folder / MODULES_FILE).is_file():
        raise no_space_error(model.folder)
    return model


def _restore_space(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Space:
    """Create a space from the tensors and header of a space file; raise CheckpointError if either is invalid."""
    saved_weights = {n.removeprefix(WEIGHTS_PREFIX): t for n, t in tensors.items() if n.startswith(WEIGHTS_PREFIX)}
    try:
        recipe = _read_recipe(path, header)
        space = Space(recipe, _build_encoders(recipe, saved_weights, header.get("frozen", {})))
        for modality in space.modalities:
            if extra_files := header["files"].get(modality):
                _load_extra_files(path, space.encoder(modality), extra_files)
        _check_frozen_weights(path, space, header.get("frozen", {}))
        expected_weights = space.state_dict_without_frozen()
        frozen_weights = {name: t for name, t in space.state_dict().items() if name not in expected_weights}
        space.load_state_dict(saved_weights | frozen_weights)
        space.history = dict(header.get("history", {}))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        problem = f"weights and header do not fit together ({error})"
        raise CheckpointError(f"{path}: {problem}; the file was modified") from error
    for name, value in space.named_parameters():
        if name not in saved_weights:
            continue  # the weights of frozen encoders are not saved
        if saved_weights[name].dtype != value.dtype:
            raise CheckpointError(f"{path}: the weights {name} are {saved_weights[name].dtype}; expected {value.dtype}")
        if not torch.isfinite(value).all():
            raise CheckpointError(f"{path}: the weights {name} contain NaN or infinity; train the space again")
    _check_embeddings_vary(path, space.eval())
    return space


def _read_recipe(path: Path, header: Mapping[str, Any]) -> Recipe:
    """Read the recipe in a header; raise PluginError if plug-ins are missing, and warn if their version differs."""
    try:
        recipe = Recipe.parse(header["recipe"], location=f"the recipe in {path}")
    except (PluginError, RecipeError) as error:
        if message := plugins.describe_missing(header.get("plugins")):
            raise PluginError(f"{path}: {message}") from error
        raise
    for package, version in recipe.plugin_packages().items():
        saved = header["plugins"].get(package, version)
        if saved != version:
            problem = f"{path}: was trained with version {str(saved)[:50]!r} of the plug-in package {package}"
            warnings.warn(f"{problem}; version {version!r} is installed, so embeddings may differ", stacklevel=2)
    return recipe


def _build_encoders(
    recipe: Recipe, saved_weights: Mapping[str, Tensor], fingerprints: Mapping[str, str]
) -> dict[Modality, Encoder]:
    """Create the encoders of a space file. A frozen encoder whose weights are missing raises an error only if used."""
    encoders: dict[Modality, Encoder] = {}
    for modality, component in recipe.space.encoders.items():
        try:
            encoders[modality] = ENCODERS[component.name](**component.settings)
        except (CheckpointError, RecipeError) as error:
            if modality not in fingerprints:
                raise
            head = [w for n, w in saved_weights.items() if n.startswith(f"heads.{modality}.") and w.ndim == 2]
            input_dim = head[0].shape[1] if head else recipe.space.embed_dim
            feature_dim = input_dim // (2 if recipe.space.pooling == "mean_max" else 1)
            max_seconds = component.settings.get("max_seconds", math.inf)
            encoders[modality] = UnavailableEncoder(
                modality, feature_dim, max_seconds, str(error), ENCODERS[component.name]
            )
    return encoders


def _load_joint_model(model: JointModel) -> Space:
    """Return a space with the encoders of a pretrained model, without heads."""
    components, encoders = model.load_encoders()
    similarity, geometry = model.read_similarity(encoders)
    embed_dim = next(iter(encoders.values())).feature_dim
    config = SpaceConfig(components, Component(similarity), embed_dim, cast(Geometry, geometry), head=Component("none"))
    space = Space(Recipe("joint-model", config, objectives=()), encoders).eval()
    _check_embeddings_vary(model.folder, space)
    return space


def _load_extra_files(path: Path, encoder: Encoder, extra_files: dict[str, str]) -> None:
    try:
        encoder.load_extra_files(extra_files)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _check_frozen_weights(path: Path, space: Space, fingerprints: Mapping[str, str]) -> None:
    for modality in space.frozen_modalities:
        encoder = space.encoder(modality)
        if isinstance(encoder, UnavailableEncoder):
            continue
        if fingerprint_encoder(encoder) != fingerprints.get(modality):
            raise CheckpointError(
                f"{path}: was trained with other weights or settings of {type(encoder).__name__} than the installed "
                f"ones; install the weights used in training ({encoder.origin}), or train the space again"
            )


@torch.inference_mode()
def _check_embeddings_vary(path: Path, space: Space) -> None:
    """Raise CheckpointError if all items of a modality would get the same embedding, for example if weights are 0."""
    for modality in space.modalities:
        if isinstance(space.encoder(modality), UnavailableEncoder):
            continue
        matrices = [weight for weight in space.encoder(modality).parameters() if weight.ndim > 1]
        num_pools = 2 if space.recipe.space.pooling == "mean_max" else 1
        shape = 2, num_pools, space.encoder(modality).feature_dim
        pooled = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        embedding = space.project(modality, pooled, torch.ones(2, num_pools, dtype=torch.bool), "pooled")
        if (matrices and not any(matrix.any() for matrix in matrices)) or torch.equal(*embedding):
            problem = f"every {modality} gets the same embedding, because the weights are 0"
            raise CheckpointError(f"{path}: {problem}; train the space again")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER_KEY, "{}"))
            # Tensors are cloned, because safetensors maps the file into memory. A mapped file occupies the disk even
            # after another file has replaced it. Without clones, a resumed training would need disk space for one more
            # training state.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error}); the file may be truncated") from error
    if not isinstance(header, dict) or not header:
        raise CheckpointError(f"{path}: not a space file; `triptych train` creates space files")
    if (version := header.get("format_version", "unknown format")) != FORMAT_VERSION:
        raise CheckpointError(f"{path}: saved by another version of triptych ({version}); train again (--restart)")
    return tensors, header


def _is_triptych_model(folder: Path) -> bool:
    """Return whether a folder in the layout of the Hugging Face hub contains a space of triptych."""
    try:
        return json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("model_type") == "triptych"
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
