"""The joint models in the local cache of the Hugging Face hub. Nothing is imported that takes seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Modality

REPOSITORY_PREFIX, WEIGHTS_INDEX = "models--", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
IMAGES_AND_TEXTS: tuple[Modality, ...] = ("image", "text")
# The modalities by `model_type` in config.json; types without an entry are not listed.
MODEL_TYPES: Mapping[str, tuple[Modality, ...]] = {
    "embedding_gemma2": ("image", "audio", "text"),
    **dict.fromkeys(("clip", "siglip", "siglip2", "metaclip_2", "align", "altclip", "aimv2"), IMAGES_AND_TEXTS),
    "clap": ("audio", "text"),
    "pe_audio": ("audio", "text"),
}
TOWER_CONFIGS = {"image": "vision_config", "audio": "audio_config"}  # null in config.json if the tower is absent


@dataclass(frozen=True)
class CachedModel:
    """A joint model in the local cache of the hub, with all of its files."""

    name: str  # such as google/embeddinggemma-2
    modalities: tuple[Modality, ...]
    embed_dim: int | None


def list_cached_models() -> list[CachedModel]:
    """Return the complete joint models in the cache, the models with most modalities first, then by name."""
    from huggingface_hub import constants

    try:
        repositories = [folder.name for folder in Path(constants.HF_HUB_CACHE).glob(f"{REPOSITORY_PREFIX}*--*")]
    except OSError:  # a cache that cannot be read counts as empty
        return []
    names = (name.removeprefix(REPOSITORY_PREFIX).replace("--", "/") for name in repositories)
    models = (model for name in names if (model := _read_model(name)))
    return sorted(models, key=lambda model: (-len(model.modalities), model.name))


def find_cached_folder(name: str) -> Path | None:
    """Return the folder of a model of any type in the cache; None if the model is not downloaded completely."""
    from huggingface_hub import constants

    repository = Path(constants.HF_HUB_CACHE) / f"{REPOSITORY_PREFIX}{name.replace('/', '--')}"
    try:
        folder = _find_snapshot(repository)
        return folder if _has_all_weights(folder) and _has_preprocessing(folder) else None
    except (OSError, ValueError, RecursionError):
        return None


def _read_model(name: str) -> CachedModel | None:
    """Return a model in the cache; None if it is no joint model, or not downloaded completely."""
    folder = find_cached_folder(name)
    if folder is None:
        return None
    config = _read_json(folder / "config.json")
    possible: tuple[Modality, ...] = MODEL_TYPES.get(str(config.get("model_type")), ())
    modalities: tuple[Modality, ...] = tuple(m for m in possible if config.get(TOWER_CONFIGS.get(m, ""), 0) is not None)
    text_config = config.get("text_config")
    sizes = [config, text_config if isinstance(text_config, dict) else {}]
    dims = [table.get(key) for table in sizes for key in ("projection_dim", "embedding_dim")]
    embed_dim = next((dim for dim in dims if isinstance(dim, int)), None)
    return CachedModel(name, modalities, embed_dim) if modalities else None


def _find_snapshot(repository: Path) -> Path:
    """Return the folder of the default branch, or of another revision. Raise OSError if there is none."""
    branch = repository / "refs" / "main"
    if branch.is_file():
        return repository / "snapshots" / branch.read_text(encoding="utf-8").strip()
    folders = sorted((repository / "snapshots").iterdir())
    if not folders:
        raise FileNotFoundError(repository)
    return folders[-1]


def _has_all_weights(folder: Path) -> bool:
    """Return whether a folder has all files of weights. While a file is downloaded, it has no name in the folder."""
    if (folder / WEIGHTS_INDEX).is_file():
        names = _read_json(folder / WEIGHTS_INDEX).get("weight_map")
        return isinstance(names, dict) and all((folder / str(name)).is_file() for name in names.values())
    return any(path.is_file() for path in folder.glob("*.safetensors"))


def _has_preprocessing(folder: Path) -> bool:
    """Return whether a folder has a tokenizer, and a processor if the model has towers for images or audio."""
    config = _read_json(folder / "config.json")
    needed = [TOKENIZER_FILES]
    needed += [PROCESSOR_FILES] if any(config.get(key) is not None for key in TOWER_CONFIGS.values()) else []
    return all(any((folder / name).is_file() for name in names) for names in needed)


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object")  # noqa: TRY004 - the file is invalid, not the argument
    return content
