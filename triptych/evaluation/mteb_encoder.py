"""A space as an encoder that mteb can run its benchmarks on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.checkpoint import compute_fingerprint, load
from triptych.errors import UsageError
from triptych.interfaces import MODALITIES, Modality, Source
from triptych.space import Space, apply_geometry, features_without_parts

PAIR_BLOCK = 256  # pairs that are scored at a time


class MTEBEncoder:
    """What mteb asks of a model: encode batches of texts, pictures and sounds, and score embeddings.

    Use when: a space is to be compared on mteb's tasks: `mteb.evaluate(MTEBEncoder("runs/mine"), tasks)`.
    Beware: mteb keeps one vector an item. A similarity that reads parts then sees each item as its only part, so its
    scores are not those of `triptych evaluate`. An item of several modalities is the mean of their embeddings.
    """

    def __init__(self, run: str | Path, revision: str | None = None, device: str | None = None, **_: Any) -> None:
        if device not in (None, "cpu"):
            raise UsageError(f"device {device!r}: a space is measured on the cpu")
        self.space: Space = load(run)
        self.name = f"triptych/{Path(run).resolve().name}"
        # By the weights, not by the folder's name: mteb keeps results by revision, and must not give those of others.
        self.revision = revision or compute_fingerprint(run)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **_: Any) -> NDArray[np.float32]:
        """Embeddings (N, D) of all batches, in order; what else mteb says of the task changes nothing."""
        embeddings = [self._encode_batch(batch) for batch in inputs]
        return (
            np.concatenate(embeddings) if embeddings else np.empty((0, self.space.recipe.space.embed_dim), np.float32)
        )

    def _encode_batch(self, batch: Mapping[str, Any]) -> NDArray[np.float32]:
        present: list[Modality] = [m for m in MODALITIES if m in batch]
        if not present:
            raise UsageError(
                f"nothing to embed: this batch has {', '.join(batch) or 'nothing'}, not image, audio or text"
            )
        embeddings = []
        with tempfile.TemporaryDirectory() as folder:
            for modality in present:
                sources = [
                    _to_source(modality, content, Path(folder) / str(i)) for i, content in enumerate(batch[modality])
                ]
                embedded = self.space.embed(sources, modality, with_parts=False)
                for reason in embedded.failures.values():
                    raise UsageError(f"an item of the task cannot be read: {reason}")
                embeddings.append(embedded.features.embedding)
        pooled = (
            embeddings[0]
            if len(embeddings) == 1
            else apply_geometry(self.space.recipe.space.geometry, torch.stack(embeddings).mean(dim=0))
        )
        return pooled.float().numpy()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """The space's own scores of every embedding against every other: (N, M)."""
        with torch.inference_mode():
            return self.space.similarity(
                *(features_without_parts(_to_matrix(side)) for side in (embeddings1, embeddings2))
            )

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """The space's own score of each embedding with the one in the same place: (N,)."""
        a, b = _to_matrix(embeddings1), _to_matrix(embeddings2)
        scores = [
            self.similarity(a[i : i + PAIR_BLOCK], b[i : i + PAIR_BLOCK]).diagonal()
            for i in range(0, len(a), PAIR_BLOCK)
        ]
        return torch.cat(scores) if scores else torch.empty(0)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb writes down beside the results: its own ModelMeta."""
        meta = import_module("mteb.models.model_meta")  # by name: mteb is large, and few have it
        return meta.ModelMeta(
            loader=None,
            name=self.name,
            revision=self.revision,
            release_date=None,
            languages=None,
            n_parameters=sum(p.numel() for p in self.space.parameters()),
            memory_usage_mb=None,
            max_tokens=None,
            embed_dim=self.space.recipe.space.embed_dim,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=meta.ScoringFunction.CUSTOM,
            use_instructions=False,
            training_datasets=None,
            modalities=cast(Any, list(self.space.modalities)),
        )


def _to_source(modality: Modality, content: Any, path: Path) -> Source:
    """A text as it is; what is in memory is written down first, without loss, as encoders read files."""
    if modality == "text":
        return Source("text", str(content))
    if modality == "image":
        path = path.with_suffix(".png")
        content.convert("RGB").save(path)
        return Source("image", path)
    path = path.with_suffix(".wav")
    samples = np.asarray(content["array"], np.float32)
    samples = samples.mean(axis=int(np.argmin(samples.shape))) if samples.ndim == 2 else samples  # channels are few
    soundfile.write(path, samples, int(content["sampling_rate"]), subtype="FLOAT")
    return Source("audio", path)


def _to_matrix(embeddings: Tensor | NDArray | Sequence[float]) -> Tensor:
    """Embeddings as (N, D), also a single one."""
    rows = torch.as_tensor(np.asarray(embeddings) if not isinstance(embeddings, Tensor) else embeddings)
    return rows.float().reshape(-1, rows.shape[-1])
