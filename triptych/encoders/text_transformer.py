"""A small transformer over byte-pair tokens, trained from scratch. Parts are tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from triptych.encoders.bpe_tokenizer import BPETokenizer
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source


class TextTransformer(Encoder):
    """A pre-norm transformer over byte-pair tokens, with learned position embeddings.

    parts = transformer(embed(token_i) + position(i)),  one part per token

    Source: Vaswani et al. 2017 (transformer), Sennrich et al. 2016 and Radford et al. 2019 (byte-level BPE).
    Use when: you have thousands of short captions.
    Beware: the tokenizer accepts every language, but the network learns only words that occur in the training captions.
    A text of more than `max_length` tokens is truncated.
    """

    modality = "text"
    part_name = "token"

    def __init__(
        self,
        feature_dim: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        vocab_size: int = 2000,
        max_length: int = 64,
    ) -> None:
        super().__init__()
        check_range("text_transformer: feature_dim", feature_dim, 4, 8192)
        check_range("text_transformer: num_layers", num_layers, 1, 100)
        check_range("text_transformer: num_heads", num_heads, 1, feature_dim)
        if feature_dim % num_heads:
            message = f"feature_dim = {feature_dim}: must be a multiple of num_heads = {num_heads}"
            raise RecipeError(f"text_transformer: {message}")
        self.feature_dim, self.num_layers, self.num_heads = feature_dim, num_layers, num_heads
        self.vocab_size, self.max_length = vocab_size, max_length
        self.tokenizer = BPETokenizer("text_transformer", vocab_size, max_length)
        self.token_embedding = nn.Embedding(vocab_size, feature_dim)
        self.position_embedding = nn.Parameter(torch.randn(max_length, feature_dim) * 0.1)
        layer = nn.TransformerEncoderLayer(
            feature_dim, num_heads, 2 * feature_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(feature_dim)
        self.transformer = nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        self.tokenizer.fit_vocabulary(sources)

    def prepare(self, source: Source) -> Tensor:
        return self.tokenizer.prepare(source)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.token_embedding(inputs) + self.position_embedding[: inputs.shape[1]]
        return self.transformer(x, src_key_padding_mask=~mask), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        return self.tokenizer.part_locations(source)

    def extra_files(self) -> dict[str, str]:
        return self.tokenizer.extra_files()

    def load_extra_files(self, files: dict[str, str]) -> None:
        self.tokenizer.load_extra_files(files)
