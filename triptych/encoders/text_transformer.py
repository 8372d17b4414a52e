"""Word pieces learned from the captions, through a small transformer; its parts are the word pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.word_pieces import BYTES, WordPieces
from triptych.errors import RecipeError, check_range


class TextTransformer(Encoder):
    """Word pieces with learned positions through a pre-norm transformer.

    parts = transformer(embed(piece_i) + position(i)),  one part per word piece

    Source: Vaswani et al. 2017; byte-level pieces: Sennrich et al. 2016, Radford et al. 2019.
    Use when: captions are short and there are thousands of them.
    Beware: any language can be written in bytes, but only words like those of the training captions mean anything;
    a text longer than `length` pieces is cut.
    """

    modality = "text"
    kind = "word piece"

    def __init__(
        self, width: int = 128, layers: int = 2, heads: int = 4, vocabulary: int = 2000, length: int = 64
    ) -> None:
        super().__init__()
        check_range("text_transformer: width", width, 4, 8192)
        check_range("text_transformer: layers", layers, 1, 100)
        check_range("text_transformer: heads", heads, 1, width)
        check_range("text_transformer: vocabulary", vocabulary, BYTES + 1, 1_000_000)
        check_range("text_transformer: length", length, 1, 100_000)
        if width % heads:
            raise RecipeError(f"text_transformer: width = {width}: must be a multiple of heads = {heads}")
        self.width, self.layers, self.heads = width, layers, heads
        self.vocabulary, self.length = vocabulary, length
        self.pieces = WordPieces(vocabulary, length)
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.1)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def learn(self, sources: Iterable[Source]) -> None:
        self.pieces.learn(sources)

    def prepare(self, source: Source) -> Tensor:
        return self.pieces.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(inputs) + self.position[: inputs.shape[1]]
        return self.transformer(x, src_key_padding_mask=~mask), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        return self.pieces.places(source)

    def files(self) -> dict[str, str]:
        return self.pieces.files()

    def restore(self, files: dict[str, str]) -> None:
        self.pieces.restore(files)
