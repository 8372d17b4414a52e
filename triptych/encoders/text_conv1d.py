"""Word pieces learned from the captions, through 1-D convolutions; its parts are the word pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.temporal import TimeConvolution
from triptych.encoders.word_pieces import BYTES, WordPieces
from triptych.errors import check_range

KERNEL = 3


class TextConv1d(Encoder):
    """Vectors of word pieces through convolutions over three neighbours each: a part has read 2 · layers + 1 pieces.

    x⁰_i = embed(piece_i);  xˡ = relu(norm(conv_3(xˡ⁻¹)));  parts = x^layers, one per word piece

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's text network), who start from word2vec; here the
    vectors are learned with the rest, of byte-level pieces. Layers, widths and the norm of each part alone are ours.
    Use when: as the text side of `distill`, under layers that all modalities share; or where neighbouring words say it.
    Beware: words that stand far apart never meet; a text longer than `length` pieces is cut.
    """

    modality = "text"
    kind = "word piece"

    def __init__(self, width: int = 128, layers: int = 3, vocabulary: int = 2000, length: int = 64) -> None:
        super().__init__()
        check_range("text_conv1d: width", width, 2, 8192)
        check_range("text_conv1d: layers", layers, 1, 100)
        check_range("text_conv1d: vocabulary", vocabulary, BYTES + 1, 1_000_000)
        check_range("text_conv1d: length", length, 1, 100_000)
        self.width, self.layers, self.vocabulary, self.length = width, layers, vocabulary, length
        self.pieces = WordPieces(vocabulary, length)
        self.embed = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(TimeConvolution(width, width, KERNEL, norm=True) for _ in range(layers))

    def learn(self, sources: Iterable[Source]) -> None:
        self.pieces.learn(sources)

    def prepare(self, source: Source) -> Tensor:
        return self.pieces.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(inputs).transpose(1, 2)  # (N, width, pieces)
        for convolution in self.convolutions:
            x = convolution(x, mask)
        return x.transpose(1, 2), mask

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        return self.pieces.places(source)

    def files(self) -> dict[str, str]:
        return self.pieces.files()

    def restore(self, files: dict[str, str]) -> None:
        self.pieces.restore(files)
