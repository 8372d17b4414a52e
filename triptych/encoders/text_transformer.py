"""Word pieces learned from the captions, through a small transformer; its parts are the word pieces."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from triptych.contracts import Encoder, Source
from triptych.errors import CheckpointError, MediaError, RecipeError, TrainingError, check_range
from triptych.media import text

PADDING = "[PAD]"
BYTES = 256
VOCABULARY_FILE = "tokenizer.json"


class TextTransformer(Encoder):
    """Word pieces with learned positions through a pre-norm transformer.

    parts = transformer(embed(piece_i) + position(i)),  one part per word piece

    Source: Vaswani et al. 2017; byte-level pieces: Sennrich et al. 2016, Radford et al. 2019.
    Use when: captions are short and there are thousands of them.
    Beware: any language can be written in bytes, but only words like those of the training captions mean anything;
    a text longer than `length` pieces is cut.
    """

    modality = "text"

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
        self.tokenizer: Tokenizer | None = None
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.1)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def learn(self, sources: Iterable[Source]) -> None:
        """Learn the word pieces of the training captions."""
        # Sorted and without repeats: the vocabulary must not depend on the order of the rows.
        captions = sorted({text.normalise(str(source.content)) for source in sources})
        if not captions:
            raise TrainingError("there are no captions to learn words from; give a manifest with a text column")
        # Byte pairs, not WordPiece: the library's WordPiece trainer numbers its pieces differently on every run.
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=[PADDING],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(captions, trainer)
        tokenizer.enable_truncation(self.length)
        self.tokenizer = tokenizer

    def prepare(self, source: Source) -> Tensor:
        if self.tokenizer is None:
            raise CheckpointError("this text encoder has no vocabulary yet; train it, or load a trained space")
        content = source.content
        words = text.read(content) if isinstance(content, Path) else text.normalise(content)
        pieces = self.tokenizer.encode(words).ids
        if not pieces:
            raise MediaError(f"the text {str(content)!r} holds no words")
        return torch.tensor(pieces)  # (pieces,)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(inputs) + self.position[: inputs.shape[1]]
        return self.transformer(x, src_key_padding_mask=~mask), mask

    def files(self) -> dict[str, str]:
        return {} if self.tokenizer is None else {VOCABULARY_FILE: self.tokenizer.to_str()}

    def restore(self, files: dict[str, str]) -> None:
        if VOCABULARY_FILE not in files:
            raise CheckpointError(f"the saved text encoder has no {VOCABULARY_FILE}; the file is not whole")
        try:
            self.tokenizer = Tokenizer.from_str(files[VOCABULARY_FILE])
            self.tokenizer.enable_truncation(self.length)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"the saved {VOCABULARY_FILE} cannot be read ({error})") from error
        if max(self.tokenizer.get_vocab().values(), default=0) >= self.vocabulary:
            raise CheckpointError(f"the saved {VOCABULARY_FILE} has more pieces than the recipe's {self.vocabulary}")
