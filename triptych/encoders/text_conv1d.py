"""Word pieces learned from the captions, through 1-D convolutions; its parts are the word pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from triptych.encoders.bpe_tokenizer import NUM_BYTES, BPETokenizer
from triptych.encoders.temporal import MaskedConv1d
from triptych.errors import check_range
from triptych.interfaces import Encoder, Region, Source

KERNEL_SIZE = 3


class TextConv1d(Encoder):
    """Vectors of word pieces through convolutions over three neighbours each: a part has read 2 · layers + 1 pieces.

    x⁰_i = embed(piece_i);  xˡ = relu(norm(conv_3(xˡ⁻¹)));  parts = x^layers, one per word piece

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's text network), who start from word2vec; here the
    vectors are learned with the rest, of byte-level pieces. Layers, widths and the norm of each part alone are ours.
    Use when: as the text side of `distill`, under layers that all modalities share; or where neighbouring words say it.
    Beware: words that stand far apart never meet; a text longer than `max_length` pieces is cut.
    """

    modality = "text"
    part_name = "token"

    def __init__(
        self, feature_dim: int = 128, num_layers: int = 3, vocab_size: int = 2000, max_length: int = 64
    ) -> None:
        super().__init__()
        check_range("text_conv1d: feature_dim", feature_dim, 2, 8192)
        check_range("text_conv1d: num_layers", num_layers, 1, 100)
        check_range("text_conv1d: vocab_size", vocab_size, NUM_BYTES + 1, 1_000_000)
        check_range("text_conv1d: max_length", max_length, 1, 100_000)
        self.feature_dim, self.num_layers, self.vocab_size, self.max_length = (
            feature_dim,
            num_layers,
            vocab_size,
            max_length,
        )
        self.tokenizer = BPETokenizer(vocab_size, max_length)
        self.token_embedding = nn.Embedding(vocab_size, feature_dim)
        self.convolutions = nn.ModuleList(
            MaskedConv1d(feature_dim, feature_dim, KERNEL_SIZE, norm=True) for _ in range(num_layers)
        )

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        self.tokenizer.fit_vocabulary(sources)

    def prepare(self, source: Source) -> Tensor:
        return self.tokenizer.prepare(source)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.token_embedding(inputs).transpose(1, 2)  # (N, width, pieces)
        for convolution in self.convolutions:
            x = convolution(x, mask)
        return x.transpose(1, 2), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        return self.tokenizer.part_locations(source)

    def extra_files(self) -> dict[str, str]:
        return self.tokenizer.extra_files()

    def load_extra_files(self, files: dict[str, str]) -> None:
        self.tokenizer.load_extra_files(files)
