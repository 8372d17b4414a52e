"""Find pretrained joint models by name: the folder of a model, hf:NAME or st:NAME, with settings after a question mark.

Examples are hf:openai/clip-vit-base-patch32, hf:google/embeddinggemma-2?truncate_dim=256, and
st:sentence-transformers/all-MiniLM-L6-v2.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych import hub
from triptych.encoders import ENCODERS
from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.joint import JointAudio, JointImage, JointText
from triptych.encoders.joint_networks import explain_not_joint, joint_modalities
from triptych.encoders.sentence_transformer import list_modalities, load_sentence_transformer
from triptych.errors import CheckpointError, describe_unknown
from triptych.interfaces import MODALITIES, Encoder, Modality
from triptych.settings import Component, apply_override, check_keys, read_component
from triptych.spaces.hub_cache import find_cached_folder

LIBRARIES = {"hf:": "transformers", "st:": "sentence-transformers"}  # by prefix
JOINT_ENCODERS: dict[str, type[Encoder]] = {f"joint_{cls.modality}": cls for cls in (JointImage, JointAudio, JointText)}
SIMILARITIES = {"cosine": "sphere", "dot": "free"}  # the geometry of embeddings that a similarity compares


@dataclass(frozen=True)
class JointModel:
    """A pretrained model in a folder, the library that loads it, and the settings of its encoders."""

    folder: Path
    library: str = "transformers"
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a name that `find_model` accepts in any working folder."""
        folder, settings = str(self.folder.resolve()), "&".join(f"{k}={v}" for k, v in self.settings.items())
        if self.library == "transformers" and not settings:
            return folder
        prefix = next(prefix for prefix, library in LIBRARIES.items() if library == self.library)
        return f"{prefix}{folder}?{settings}" if settings else f"{prefix}{folder}"

    def compute_fingerprint(self) -> str:
        """Return a hash of the files of the model, its library and its settings."""
        files = sorted([*self.folder.rglob("*.json"), *self.folder.rglob("*.safetensors")])
        digest = hashlib.sha256()
        for path in files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        if self.settings or self.library != "transformers":
            digest.update(f"{self.library} {sorted(self.settings.items())}".encode())
        return digest.hexdigest()[:16]

    def load_encoders(self) -> tuple[dict[Modality, Component], dict[Modality, Encoder]]:
        """Load an encoder for each modality of the model; return their components in a recipe and the encoders."""
        pretrained = PretrainedModel("joint model", str(self.folder), "main")
        if self.library == "transformers":
            config = pretrained.load_config()
            available = joint_modalities(config)
            if not available:
                raise CheckpointError(f"{self}: {explain_not_joint(config)}")
        else:
            model = load_sentence_transformer(pretrained)  # stays in memory until the encoders share it
            available = list_modalities(model)
        check_keys(self.settings, {"modalities"}.union(*(_setting_names(m) for m in MODALITIES)), str(self))
        components: dict[Modality, Component] = {}
        for modality in self._select_modalities(available):
            settings = {k: v for k, v in self.settings.items() if k in _setting_names(modality)}
            table = {
                "name": f"joint_{modality}",
                "model": str(self.folder.resolve()),
                "library": self.library,
                **settings,
            }
            components[modality] = read_component(table, ENCODERS, "encoder", str(self))
        encoders: dict[Modality, Encoder] = {m: JOINT_ENCODERS[c.name](**c.settings) for m, c in components.items()}
        return components, encoders

    def _select_modalities(self, available: tuple[Modality, ...]) -> tuple[Modality, ...]:
        """Return the modalities that the setting `modalities` lists, such as "image,text"; by default all."""
        names = str(self.settings.get("modalities", ",".join(available))).split(",")
        for name in names:
            if name not in available:
                raise CheckpointError(f"{self}: modalities: {describe_unknown('modality', name, available)}")
        return tuple(m for m in available if m in names)

    def read_similarity(self, encoders: dict[Modality, Encoder]) -> tuple[str, str]:
        """Return the name of the similarity that compares the model's embeddings, and the geometry of embeddings."""
        tower: Any = getattr(next(iter(encoders.values())), "tower", None)
        name = getattr(getattr(tower, "model", None), "similarity_fn_name", None) or "cosine"
        if name not in SIMILARITIES:
            known = " or ".join(SIMILARITIES)
            raise CheckpointError(f"{self}: the model compares embeddings by {name}; use a model with {known}")
        return name, SIMILARITIES[name]


def _setting_names(modality: Modality) -> set[str]:
    """Return the settings of an encoder that can follow the name of a model."""
    parameters = inspect.signature(JOINT_ENCODERS[f"joint_{modality}"]).parameters
    return set(parameters) - {"model", "revision", "library", "frozen"}


def find_model(name: str | Path) -> JointModel | None:
    """Return the model in a folder, or a model with a prefix; None for the name of a file.

    A model name that is not a folder is downloaded from the Hugging Face hub, unless it is in the local cache. The
    model in the folder can also be a space of triptych.
    """
    prefix, text = str(name)[:3], str(name)
    if prefix not in LIBRARIES:
        folder = Path(name).expanduser()
        return JointModel(folder) if folder.is_dir() else None
    location, _, query = text.removeprefix(prefix).partition("?")
    settings: dict[str, Any] = {}
    revision = None
    for setting in query.split("&") if query else ():
        key, separator, value = setting.partition("=")
        if not separator or "." in key:
            raise CheckpointError(f"{name}: {setting!r} is not a setting; an example is truncate_dim=256")
        if key == "revision":
            revision = value
        else:
            apply_override(settings, setting)
    folder = Path(location).expanduser()
    if not folder.is_dir():
        cached = None if revision else find_cached_folder(location)
        folder = cached or hub.download(location, revision, prefix)
    return JointModel(folder, LIBRARIES[prefix], settings)
