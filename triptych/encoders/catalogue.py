"""Facts about every registered encoder: modality, size, licence, and whether it can be used on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from triptych.errors import TriptychError
from triptych.interfaces import MODALITIES, Encoder, Modality


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


def list_encoders(encoders: Mapping[str, type[Encoder]]) -> list[EncoderInfo]:
    """Describe the encoders of a registry, grouped by modality, trainable ones first."""
    infos = [describe_encoder(name, cls) for name, cls in encoders.items()]
    return sorted(infos, key=lambda info: (MODALITIES.index(info.modality), info.frozen))


def describe_encoder(name: str, cls: type[Encoder]) -> EncoderInfo:
    """Describe one encoder; its sizes are None if they depend on missing files."""
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
        return None  # the sizes are in missing files; creating the encoder would import a large library and fail
    try:
        # Pretrained encoders are large, and the meta device allocates no memory. Encoders trained from scratch are
        # created on the CPU, because random initialisation on the meta device needs an import of one second.
        with torch.device("meta" if cls.frozen else "cpu"):
            return cls()
    except TriptychError:
        return None
