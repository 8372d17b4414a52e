"""Word pieces learned from the training captions: what every text encoder that starts from nothing reads."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from triptych.contracts import Place, Source
from triptych.encoders.panics import panics_as_errors
from triptych.encoders.places import characters
from triptych.errors import CheckpointError, MediaError, TrainingError
from triptych.media import text

PADDING = "[PAD]"
BYTES = 256
VOCABULARY_FILE = "tokenizer.json"
SHOWN = 60  # characters of a text that a message shows


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
        tokenizer = _empty()
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
            with panics_as_errors():
                self.tokenizer = Tokenizer.from_str(files[VOCABULARY_FILE])
                self.tokenizer.enable_truncation(self.length)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"the saved {VOCABULARY_FILE} cannot be read ({error})") from error
        if _ways(self.tokenizer) != _ways(_empty()):  # another's may hold patterns that never come to an end
            raise CheckpointError(
                f"the saved {VOCABULARY_FILE} splits texts otherwise than this encoder; the file has been changed"
            )
        if max(self.tokenizer.get_vocab().values(), default=0) >= self.vocabulary:
            raise CheckpointError(f"the saved {VOCABULARY_FILE} has more pieces than the recipe's {self.vocabulary}")

    def _encode(self, words: str) -> Encoding:
        if self.tokenizer is None:
            raise CheckpointError("this text encoder has no vocabulary yet; train it, or load a trained space")
        try:
            with panics_as_errors():
                return self.tokenizer.encode(words)
        except RuntimeError as error:
            raise MediaError(f"the text {words[:SHOWN]!r} cannot be split into word pieces ({error})") from error


def _empty() -> Tokenizer:
    """A tokenizer that has learned nothing yet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _ways(tokenizer: Tokenizer) -> list[object]:
    """How a tokenizer cleans and splits texts, before its vocabulary is asked."""
    whole = json.loads(tokenizer.to_str())
    return [whole["normalizer"], whole["pre_tokenizer"], whole["post_processor"], whole["model"]["type"]]
