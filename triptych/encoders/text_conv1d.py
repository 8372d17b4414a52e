"""1-D convolutions over byte-pair tokens, trained from scratch. Parts are tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from triptych.encoders.bpe_tokenizer import BPETokenizer
from triptych.encoders.temporal import MaskedConv1d
from triptych.errors import check_range
from triptych.interfaces import Encoder, Region, Source

KERNEL_SIZE = 3


class TextConv1d(Encoder):
    """Convolutions over three neighbouring tokens. The receptive field of a part is 2 · num_layers + 1 tokens.

    x⁰_i = embed(token_i);  xˡ = relu(norm(conv_3(xˡ⁻¹)));  parts = x^num_layers, one per token

    Source: Aytar et al. 2017 (See, Hear, and Read: the text network of the student). The paper starts from word2vec,
    but this encoder learns embeddings of byte-level tokens. The numbers of layers and channels and the norm per token
    are choices of triptych.
    Use when: you train with the objective `distill`, and all modalities share layers (space.shared_hidden_dim). Also
    use when only the order of neighbouring words matters.
    Beware: words outside the receptive field do not influence a part. A text of more than `max_length` tokens is
    truncated.
    """

    modality = "text"
    part_name = "token"

    def __init__(
        self, feature_dim: int = 128, num_layers: int = 3, vocab_size: int = 2000, max_length: int = 64
    ) -> None:
        super().__init__()
        check_range("text_conv1d: feature_dim", feature_dim, 2, 8192)
        check_range("text_conv1d: num_layers", num_layers, 1, 100)
        self.feature_dim, self.num_layers = feature_dim, num_layers
        self.vocab_size, self.max_length = vocab_size, max_length
        self.tokenizer = BPETokenizer("text_conv1d", vocab_size, max_length)
        self.token_embedding = nn.Embedding(vocab_size, feature_dim)
        self.convolutions = nn.ModuleList(
            MaskedConv1d(feature_dim, feature_dim, KERNEL_SIZE, norm=True) for _ in range(num_layers)
        )

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        self.tokenizer.fit_vocabulary(sources)

    def prepare(self, source: Source) -> Tensor:
        return self.tokenizer.prepare(source)  # (tokens,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.token_embedding(inputs).transpose(1, 2)  # (N, feature_dim, tokens)
        for convolution in self.convolutions:
            x = convolution(x, mask)
        return x.transpose(1, 2), mask

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        return self.tokenizer.part_locations(source)

    def extra_files(self) -> dict[str, str]:
        return self.tokenizer.extra_files()

    def load_extra_files(self, files: dict[str, str]) -> None:
        self.tokenizer.load_extra_files(files)
