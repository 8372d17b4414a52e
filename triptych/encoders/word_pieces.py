"""Word pieces learned from the training captions: what every text encoder that starts from nothing reads."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from triptych.contracts import Place, Source
from triptych.encoders.places import characters
from triptych.errors import CheckpointError, TrainingError
from triptych.media import text

PADDING = "[PAD]"
BYTES = 256
VOCABULARY_FILE = "tokenizer.json"


class WordPieces:
    """A vocabulary of byte pairs: at most `vocabulary` pieces, and at most `length` of them in a text."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self.vocabulary, self.length = vocabulary, length
        self.tokenizer: Tokenizer | None = None

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
        """The numbers of a text's pieces: (pieces,)."""
        return torch.tensor(self._encode(text.words(source)).ids)  # (pieces,)

    def places(self, source: Source) -> list[Place]:
        """The characters of each piece."""
        words = text.words(source)
        return characters(words, self._encode(words).offsets)

    def files(self) -> dict[str, str]:
        """The vocabulary as a named text; nothing before it is learned."""
        return {} if self.tokenizer is None else {VOCABULARY_FILE: self.tokenizer.to_str()}

    def restore(self, files: dict[str, str]) -> None:
        """Take back what `files` gave."""
        if VOCABULARY_FILE not in files:
            raise CheckpointError(f"the saved text encoder has no {VOCABULARY_FILE}; the file is not whole")
        try:
            self.tokenizer = Tokenizer.from_str(files[VOCABULARY_FILE])
            self.tokenizer.enable_truncation(self.length)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"the saved {VOCABULARY_FILE} cannot be read ({error})") from error
        if max(self.tokenizer.get_vocab().values(), default=0) >= self.vocabulary:
            raise CheckpointError(f"the saved {VOCABULARY_FILE} has more pieces than the recipe's {self.vocabulary}")

    def _encode(self, words: str) -> Encoding:
        if self.tokenizer is None:
            raise CheckpointError("this text encoder has no vocabulary yet; train it, or load a trained space")
        return self.tokenizer.encode(words)
