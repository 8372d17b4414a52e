"""The embedding model: an encoder and a projection head for each modality, one geometry and one similarity."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor, nn

from triptych.data.cache import Cache, to_float16
from triptych.devices import default_batch_size
from triptych.embedding import EmbedResult, embed_in_batches
from triptych.encoders import ENCODERS
from triptych.errors import InputError, MediaError, UsageError
from triptych.heads import make_head
from triptych.heads.mlp import MLPHead
from triptych.heads.residual import ResidualHead
from triptych.inputs import Input, is_one_input, to_source
from triptych.interfaces import (
    MODALITIES,
    Batch,
    Encoder,
    Features,
    InputKind,
    Modality,
    Pair,
    Similarity,
    Source,
    features_from_embeddings,
)
from triptych.pooling import apply_geometry, masked_max, masked_mean
from triptych.progress import ProgressBar, track_progress
from triptych.recipe import Recipe
from triptych.similarities import SIMILARITIES

PROGRESS_BAR_INPUTS = 64  # `encode` shows a progress bar for more inputs


class EncodeOptions(TypedDict, total=False):
    """The options of `Space.encode_query` and `Space.encode_document`; `Space.encode` describes them."""

    batch_size: int | None
    workers: int
    show_progress_bar: bool | None
    cache: Cache | None


class Space(nn.Module):
    """The embedding model of all modalities: embedding = geometry(shared_head(head(pool(encoder(inputs))))).

    Args:
        recipe: The recipe. The heads of a new space are untrained; `triptych.train` returns a trained space.
        encoders: Existing encoders by modality. Default: new encoders.

    Example:
        >>> space.similarity(space.encode(["a bell", "a dog"]), space.encode([Path("bark.wav")])).shape
        torch.Size([2, 1])
    """

    def __init__(self, recipe: Recipe, encoders: Mapping[Modality, Encoder] | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        self.name_or_path: str | None = None  # `triptych.load` accepts it in any working folder; None: not loaded
        self.missing: dict[Modality, str] = {}  # modalities that cannot be embedded here, and how to add them
        self.history: dict[str, Any] = {}  # describes the training data and the validation score, for the model card
        config = recipe.space
        encoders = encoders or {m: ENCODERS[c.name](**c.settings) for m, c in config.encoders.items()}
        self.encoders = nn.ModuleDict({m: encoders[m] for m in config.encoders})
        pools = 2 if config.pooling == "mean_max" else 1
        self.heads = nn.ModuleDict()
        for m in config.encoders:
            dims = pools * encoders[m].feature_dim, config.embed_dim
            head = make_head(config.head_for(m), m, encoders[m], *dims)
            self.heads[m] = ResidualHead(head, *dims) if config.residual else head
        dims = config.embed_dim, config.embed_dim, config.shared_hidden_dim
        self.shared_head = MLPHead(*dims, dropout=config.shared_dropout) if config.shared_hidden_dim else nn.Identity()
        self.similarity: Similarity = SIMILARITIES[config.similarity.name](**config.similarity.settings)
        for modality in self.frozen_modalities:
            self.encoders[modality].requires_grad_(False)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities that the space can embed."""
        return tuple(cast(Modality, m) for m in self.encoders)

    @property
    def frozen_modalities(self) -> tuple[Modality, ...]:
        """The modalities whose encoder is frozen; the outputs of frozen encoders can be cached."""
        return tuple(m for m in self.modalities if self.encoder(m).frozen)

    @property
    def device(self) -> torch.device:
        """The device of the encoders and heads, which compute embeddings; features are returned on the CPU."""
        return next(self.parameters()).device

    def encoder(self, modality: Modality) -> Encoder:
        """Return the encoder of a modality; raise UsageError if the space has no encoder for the modality."""
        if modality not in self.encoders:
            others = f"it has {', '.join(self.encoders)}"
            raise UsageError(f"this space has no encoder for {modality!r}; {self.missing.get(modality, others)}")
        return cast(Encoder, self.encoders[modality])

    def train(self, mode: bool = True) -> Space:
        """Set the training mode as nn.Module.train does, but keep frozen encoders in evaluation mode."""
        super().train(mode)
        for modality in self.frozen_modalities:
            self.encoders[modality].eval()
        for module in self.modules():
            weights = list(module.parameters()) if module is not self else []
            if weights and not any(weight.requires_grad for weight in weights):
                module.train(False)
        return self

    def state_dict_without_frozen(self) -> dict[str, Tensor]:
        """Return all weights except the weights of frozen encoders, of which a space file contains only a hash."""
        frozen_prefixes = tuple(f"encoders.{modality}." for modality in self.frozen_modalities)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(frozen_prefixes)}

    def forward(
        self,
        modality: Modality,
        inputs: Tensor,
        mask: Tensor,
        input_kind: InputKind = "inputs",
        with_parts: bool = True,
    ) -> Features:
        """Compute features from prepared inputs (N, L, ...), or from precomputed encoder outputs.

        The head projects pooled outputs and part vectors, but only the embeddings are mapped onto the geometry. With
        with_parts = False, the only part of each item is its embedding, for similarities that read no parts.
        """
        if input_kind == "inputs":
            with torch.set_grad_enabled(torch.is_grad_enabled() and modality not in self.frozen_modalities):
                encoded, mask = self.encoder(modality)(inputs, mask)
        else:
            encoded = inputs.float()
        embedding = self.project(modality, encoded, mask, input_kind)
        if input_kind == "pooled" or not with_parts:
            return features_from_embeddings(embedding, modality)
        if modality in self.frozen_modalities and input_kind == "inputs":
            encoded = to_float16(encoded).to(encoded.dtype)  # rounded, because the cache also stores float16
        encoded = torch.cat([encoded, encoded], dim=2) if self.recipe.space.pooling == "mean_max" else encoded
        return Features(embedding, self.shared_head(self.heads[modality](encoded)), mask, modality)

    def project(self, modality: Modality, encoded: Tensor, mask: Tensor, input_kind: InputKind = "parts") -> Tensor:
        """Return embeddings (N, D): pool the encoder outputs, project the result and map it onto the geometry."""
        has_max_pool = self.recipe.space.pooling == "mean_max"
        if input_kind == "pooled":
            pooled = encoded.flatten(1) if has_max_pool else encoded[:, 0]
        else:
            pooled = masked_mean(encoded, mask)
            if has_max_pool:
                pooled = torch.cat([pooled, masked_max(encoded, mask)], dim=1)
        return apply_geometry(self.recipe.space.geometry, self.shared_head(self.heads[modality](pooled)))

    def make_pair(self, a: Features, b: Features, batch: Batch, similarity: Similarity | None = None) -> Pair:
        """Return the features of a batch in two modalities as a Pair; the default similarity is that of the space."""
        return Pair(a, b, batch.group, similarity or self.similarity, batch.teacher_targets)

    def scores(self, query: Features, gallery: Features) -> Tensor:
        """Return the scores of Q queries of one modality with M gallery items of another modality: (Q, M).

        The features are those of `embed`. An asymmetric similarity gets the modalities in the order of MODALITIES. The
        scores are on the device of the features.
        """
        scores_device, weight = query.embedding.device, next(self.similarity.parameters(), query.embedding)
        query, gallery = query.to(weight.device), gallery.to(weight.device)
        if MODALITIES.index(query.require_modality()) > MODALITIES.index(gallery.require_modality()):
            return self.similarity(gallery, query).T.to(scores_device)
        return self.similarity(query, gallery).to(scores_device)

    @torch.inference_mode()
    def embed(
        self,
        sources: Iterable[Source],
        modality: Modality,
        batch_size: int | None = None,
        workers: int = 2,
        progress: ProgressBar | None = None,
        with_parts: bool = True,
        cache: Cache | None = None,
        prompt_name: str | None = None,
    ) -> EmbedResult:
        """Embed sources of one modality, in order; `failures` contains an error message for each unreadable source.

        With a cache, the outputs of a frozen encoder are read from the cache, and missing outputs are added to the
        cache. If the encoder has a prompt `prompt_name`, such as "query", all sources get this prompt.
        """
        encoder, device = self.encoder(modality), self.device

        def compute_features(inputs: tuple[Tensor, Tensor], input_kind: InputKind) -> Features:
            return self(modality, *(x.to(device) for x in inputs), input_kind, with_parts).to(torch.device("cpu"))

        was_training = self.training
        self.eval()
        try:
            size, encoder_cache = batch_size or default_batch_size(device), cache if encoder.frozen else None
            options = size, workers, progress, with_parts, encoder_cache
            sources = list(sources)
            prompted = [encoder.with_prompt(source, prompt_name) if prompt_name else source for source in sources]
            result = embed_in_batches(compute_features, encoder, prompted, self.recipe.space.embed_dim, *options)
            pairs = zip(sources, prompted, strict=True)
            return replace(result, failures={s: result.failures[p] for s, p in pairs if p in result.failures})
        finally:
            self.train(was_training)

    @overload
    def encode(
        self,
        inputs: Input | Iterable[Input],
        modality: Modality | None = ...,
        *,
        convert_to_tensor: Literal[True],
        prompt_name: str | None = ...,
        **options: Unpack[EncodeOptions],
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        inputs: Input | Iterable[Input],
        modality: Modality | None = ...,
        *,
        convert_to_tensor: Literal[False] = ...,
        prompt_name: str | None = ...,
        **options: Unpack[EncodeOptions],
    ) -> np.ndarray: ...

    def encode(
        self,
        inputs: Input | Iterable[Input],
        modality: Modality | None = None,
        *,
        convert_to_tensor: bool = False,
        batch_size: int | None = None,
        workers: int = 2,
        show_progress_bar: bool | None = None,
        cache: Cache | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray | Tensor:
        """Embed texts, images and audio, mixed in any order.

        Args:
            inputs: One input or a list of inputs: texts, paths, PIL images, image arrays, tuples (samples, rate), or
                dictionaries; `triptych.inputs.to_source` lists all forms. A string with the extension of an audio,
                image or video file is a path; every other string is a text.
            modality: The modality of all inputs. Default: each input's type determines its modality.
            convert_to_tensor: Return a tensor instead of a NumPy array.
            batch_size: The inputs per batch, which does not change the embeddings. Default: 64; on a GPU, 256.
            workers: The number of threads that decode files.
            show_progress_bar: Default: show a progress bar for more than 64 inputs if stderr is a terminal.
            cache: A cache for the outputs of frozen encoders. Default: no cache.
            prompt_name: The name of a prompt, such as "query"; ignored by encoders without such a prompt.

        Returns:
            The embeddings in the order of the inputs: (N, embed_dim) float32, or (embed_dim,) for one input.

        Raises:
            InputError: An input has an unsupported type, or the space has no encoder for its modality.
            MediaError: A file cannot be read. The message names the position of the input and the file.

        Example:
            >>> embeddings = space.encode(["a dog barks", Path("bark.wav"), Image.open("dog.jpg")])
            >>> embeddings.shape
            (3, 32)
        """
        is_single = is_one_input(inputs)
        values = cast("list[Input]", [inputs] if is_single else list(cast("Iterable[Input]", inputs)))
        sources = [self._to_source(value, modality, i, is_single) for i, value in enumerate(values)]
        embeddings = torch.empty(len(sources), self.recipe.space.embed_dim)
        is_long = len(sources) > PROGRESS_BAR_INPUTS and sys.stderr.isatty()
        should_show = is_long if show_progress_bar is None else show_progress_bar
        with track_progress("encoding", len(sources), should_show) as progress:
            present: list[Modality] = [m for m in self.modalities if any(source.modality == m for source in sources)]
            for m in present:
                rows = [i for i, source in enumerate(sources) if source.modality == m]
                present_sources = [sources[i] for i in rows]
                result = self.embed(present_sources, m, batch_size, workers, progress, False, cache, prompt_name)
                for i, source in enumerate(sources):
                    if source in result.failures:
                        position = "" if is_single else f"input {i}: "
                        raise MediaError(f"{position}{result.failures[source]}")
                embeddings[rows] = result.features.embedding
        output = embeddings[0] if is_single else embeddings
        return output if convert_to_tensor else output.numpy()

    def encode_query(
        self, inputs: Input | Iterable[Input], modality: Modality | None = None, **options: Unpack[EncodeOptions]
    ) -> np.ndarray:
        """Embed queries: the same as `encode`, except that a model with a prompt for queries gets this prompt.

        Args:
            inputs: One input or a list of inputs, as for `encode`.
            modality: The modality of all inputs. Default: each input's type determines its modality.
            **options: The options batch_size, workers, show_progress_bar and cache of `encode`.

        Returns:
            The embeddings as for `encode`: (N, embed_dim) float32, or (embed_dim,) for one input.

        Example:
            >>> queries = space.encode_query(["a dog barks", "rain on a tin roof"])
            >>> space.similarity(queries, space.encode_document([Path("bark.wav")])).shape
            torch.Size([2, 1])
        """
        return self.encode(inputs, modality, prompt_name="query", **options)

    def encode_document(
        self, inputs: Input | Iterable[Input], modality: Modality | None = None, **options: Unpack[EncodeOptions]
    ) -> np.ndarray:
        """Embed the items that are searched: as `encode`, but a model with a prompt for documents gets this prompt.

        The arguments and the result are those of `encode_query`, which has an example.
        """
        return self.encode(inputs, modality, prompt_name="document", **options)

    @staticmethod
    def from_pretrained(path: str | Path) -> Space:
        """Load a space from a folder, or from the Hugging Face hub by its name.

        Args:
            path: A folder that `save_pretrained` wrote, a name on the hub ("user/my-space"), or as for `triptych.load`.

        Returns:
            The space, in evaluation mode.

        Example:
            >>> space.save_pretrained("my-space")
            >>> Space.from_pretrained("my-space").modalities
            ('image', 'audio', 'text')
        """
        from triptych.checkpoint import load
        from triptych.hub import HUB_PREFIX

        is_hub_name = isinstance(path, str) and path.count("/") == 1 and ":" not in path and not Path(path).exists()
        return load(f"{HUB_PREFIX}{path}" if is_hub_name else path)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the weights, config, recipe, tokenizer and model card in the layout of the Hugging Face hub.

        Paths of this machine are removed from the recipe. Of frozen encoders, only a hash of the weights is written.

        Args:
            folder: The folder to write; it is created if necessary.

        Example:
            >>> space.save_pretrained("my-space")
            >>> sorted(path.name for path in Path("my-space").iterdir())
            ['README.md', 'config.json', 'model.safetensors', 'recipe.toml', 'tokenizer.json']
        """
        from triptych.checkpoint import save_pretrained

        save_pretrained(self, folder)

    def push_to_hub(self, name: str, private: bool = True, token: str | None = None, branch: str | None = None) -> str:
        """Upload the space to the Hugging Face hub in one commit.

        Args:
            name: The name of the repository, such as "user/my-space". The repository is created if necessary.
            private: Whether a new repository is private.
            token: A token with write access. Default: the token of `hf auth login`.
            branch: The branch to commit to. Default: the main branch.

        Returns:
            The address of the commit.

        Raises:
            CheckpointError: The hub cannot be reached, or refuses the upload.
        """
        from triptych.checkpoint import push_to_hub

        return push_to_hub(self, name, private, token, branch)

    def supports(self, modality: str) -> bool:
        """Return whether the space has an encoder for a modality.

        Example:
            >>> space.supports("audio")
            True
        """
        return modality in self.encoders

    def _to_source(self, value: Input, modality: Modality | None, position: int, is_single: bool) -> Source:
        try:
            source = to_source(value, modality)
            self.encoder(source.modality)
        except (InputError, UsageError) as error:
            raise InputError(f"{'' if is_single else f'input {position}: '}{error}") from error
        return source

    def embed_one(self, source: Source, prompt_name: str | None = None) -> Features:
        """Embed one source; raise MediaError if the source cannot be read."""
        result = self.embed([source], source.modality, prompt_name=prompt_name)
        for message in result.failures.values():
            raise MediaError(message)
        return result.features
