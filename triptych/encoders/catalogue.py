"""Facts about every registered encoder: modality, size, licence, and whether the encoder can run on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triptych.errors import TriptychError
from triptych.interfaces import MODALITIES, Encoder, Modality
from triptych.plugins import Registry


@dataclass(frozen=True)
class EncoderInfo:
    """Facts about one encoder with its default settings."""

    name: str
    modality: Modality
    feature_dim: int | None
    part_name: str
    parameters: int | None
    frozen: bool
    licence: str
    origin: str
    unavailable_reason: str | None


def list_encoders(encoders: Registry[type[Encoder]]) -> tuple[list[EncoderInfo], list[str]]:
    """Describe all encoders of a registry and its plug-ins, grouped by modality; trainable encoders come first.

    Also return a message about each plug-in that cannot be described.
    """
    infos, problems = [describe_encoder(name, cls) for name, cls in encoders.items()], []
    for name in encoders.known_names():
        if name not in encoders:
            try:
                infos.append(describe_encoder(name, encoders[name]))
            except Exception as error:  # the code of a plug-in can raise any exception
                problems.append(f"the plug-in {name} cannot be used: {error}")
    return sorted(infos, key=lambda info: (MODALITIES.index(info.modality), info.frozen)), problems


def describe_encoder(name: str, cls: type[Encoder]) -> EncoderInfo:
    """Describe one encoder. If files are missing, the feature dimension and the number of parameters may be None."""
    encoder = _build_encoder(cls)
    return EncoderInfo(
        name=name,
        modality=cls.modality,
        feature_dim=getattr(encoder or cls, "feature_dim", None),
        part_name=cls.part_name,
        parameters=sum(p.numel() for p in encoder.parameters()) if encoder else None,
        frozen=cls.frozen,
        licence=cls.licence,
        origin=cls.origin,
        unavailable_reason=cls.unavailable_reason(),
    )


def _build_encoder(cls: type[Encoder]) -> Encoder | None:
    if cls.unavailable_reason() and not hasattr(cls, "feature_dim"):
        # The sizes are stored in files that are missing, and creating the encoder would import a large library and then
        # fail.
        return None
    try:
        # Pretrained encoders are large, so they are created on the meta device, which allocates no memory. Encoders
        # trained from scratch are created on the CPU, because random initialisation on the meta device needs an import
        # that takes one second.
        with torch.device("meta" if cls.frozen else "cpu"):
            return cls()
    except TriptychError:
        return None
