"""Wrap a space as an encoder for the benchmarks of mteb."""

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
from triptych.interfaces import MODALITIES, Modality, Source, features_from_embeddings
from triptych.pooling import apply_geometry
from triptych.space import Space

PAIR_BLOCK = 256  # number of pairs that are scored at once


class MTEBEncoder:
    """An mteb encoder that embeds text, images and audio, and scores embeddings with the similarity of a space.

    Use when: you compare a space with other models in mteb, with `mteb.evaluate(MTEBEncoder("runs/mine"), tasks)`.
    Beware: mteb stores one vector per item. A similarity that reads parts therefore gets one part per item, so the
      scores differ from the scores of `triptych evaluate`. The embeddings of an item with several modalities are
      averaged.
    """

    def __init__(
        self,
        run: str | Path,
        revision: str | None = None,
        device: str | None = None,
        allow_plugins: str | Iterable[str] = (),
        **_: Any,
    ) -> None:
        self.space: Space = load(run, allow_plugins, device=device)
        self.name = f"triptych/{Path(run).resolve().name}"
        # mteb caches results by revision, so the revision must identify the weights.
        self.revision = revision or compute_fingerprint(run)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **_: Any) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of all batches in order. All other arguments that mteb passes are ignored."""
        empty = np.empty((0, self.space.recipe.space.embed_dim), np.float32)
        return np.concatenate([empty, *(self._encode_batch(batch) for batch in inputs)])

    def _encode_batch(self, batch: Mapping[str, Any]) -> NDArray[np.float32]:
        present: list[Modality] = [m for m in MODALITIES if m in batch]
        if not present:
            columns = ", ".join(batch) or "no columns"
            raise UsageError(f"nothing to embed: the batch has {columns}, but no image, audio or text")
        embeddings = []
        with tempfile.TemporaryDirectory() as folder:
            for modality in present:
                contents = enumerate(batch[modality])
                sources = [_to_source(modality, content, Path(folder) / str(i)) for i, content in contents]
                embedded = self.space.embed(sources, modality, with_parts=False)
                for reason in embedded.failures.values():
                    raise UsageError(f"an item of the task cannot be read: {reason}")
                embeddings.append(embedded.features.embedding)
        if len(embeddings) == 1:
            return embeddings[0].float().numpy()
        return apply_geometry(self.space.recipe.space.geometry, torch.stack(embeddings).mean(dim=0)).float().numpy()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the scores (N, M) of each vector in embeddings1 with each vector in embeddings2."""
        with torch.inference_mode():
            return self.space.similarity(*(features_from_embeddings(_to_matrix(x)) for x in (embeddings1, embeddings2)))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the score of embeddings1[i] and embeddings2[i] for every i: (N,)."""
        blocks = zip(*(_to_matrix(x).split(PAIR_BLOCK) for x in (embeddings1, embeddings2)), strict=True)
        return torch.cat([torch.empty(0), *(self.similarity(a, b).diagonal() for a, b in blocks)])

    @property
    def mteb_model_meta(self) -> Any:
        """The ModelMeta that mteb stores with the results."""
        meta = import_module("mteb.models.model_meta")  # mteb is an optional dependency
        unknown = ("loader", "release_date", "languages", "memory_usage_mb", "max_tokens", "license", "open_weights")
        unknown += ("public_training_code", "public_training_data", "training_datasets")
        return meta.ModelMeta(
            **dict.fromkeys(unknown),
            name=self.name,
            revision=self.revision,
            n_parameters=sum(p.numel() for p in self.space.parameters()),
            embed_dim=self.space.recipe.space.embed_dim,
            framework=["PyTorch"],
            similarity_fn_name=meta.ScoringFunction.CUSTOM,
            use_instructions=False,
            modalities=cast(Any, list(self.space.modalities)),
        )


def _to_source(modality: Modality, content: Any, path: Path) -> Source:
    """Return a source. Encoders read files, so images and audio in memory are written losslessly to `path`."""
    if modality == "text":
        return Source("text", str(content))
    if modality == "image":
        path = path.with_suffix(".png")
        content.convert("RGB").save(path)
        return Source("image", path)
    path = path.with_suffix(".wav")
    samples = np.asarray(content["array"], np.float32)
    if samples.ndim == 2:
        samples = samples.mean(axis=int(np.argmin(samples.shape)))  # the shorter axis is the channel axis
    soundfile.write(path, samples, int(content["sampling_rate"]), subtype="FLOAT")
    return Source("audio", path)


def _to_matrix(embeddings: Tensor | NDArray | Sequence[float]) -> Tensor:
    """Return one or several embeddings as a matrix (N, D)."""
    rows = embeddings if isinstance(embeddings, Tensor) else torch.as_tensor(np.asarray(embeddings))
    return rows.float().reshape(-1, rows.shape[-1])
