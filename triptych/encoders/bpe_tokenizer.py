"""A byte-level BPE tokenizer whose vocabulary is learned from the training captions."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from triptych.encoders.part_locations import character_spans
from triptych.encoders.rust_panics import convert_rust_panics
from triptych.errors import CheckpointError, MediaError, TrainingError, check_range
from triptych.interfaces import Region, Source
from triptych.media import text

PAD_TOKEN = "[PAD]"  # noqa: S105
NUM_BYTES = 256
TOKENIZER_FILE = "tokenizer.json"
MESSAGE_CHARS = 60  # an error message quotes at most this many characters of a text


class BPETokenizer:
    """A tokenizer with at most `vocab_size` tokens that truncates texts to `max_length` tokens.

    Error messages start with the name `encoder`.
    """

    def __init__(self, encoder: str, vocab_size: int, max_length: int) -> None:
        check_range(f"{encoder}: vocab_size", vocab_size, NUM_BYTES + 1, 1_000_000)
        check_range(f"{encoder}: max_length", max_length, 1, 100_000)
        self.vocab_size, self.max_length = vocab_size, max_length
        self.tokenizer: Tokenizer | None = None

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        """Learn the vocabulary from the training captions."""
        # Captions are sorted, so that the vocabulary does not depend on the order of the rows.
        captions = sorted({text.normalise(str(source.content)) for source in sources})
        if not captions:
            raise TrainingError("no captions to learn a vocabulary from; use a manifest with a text column")
        # The algorithm is BPE, because the WordPiece trainer of the tokenizers library numbers the tokens differently
        # in every run.
        tokenizer = _untrained_tokenizer()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            special_tokens=[PAD_TOKEN],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(captions, trainer)
        tokenizer.enable_truncation(self.max_length)
        self.tokenizer = tokenizer

    def prepare(self, source: Source) -> Tensor:
        """Return the token ids of a text: (tokens,)."""
        return torch.tensor(self._encode(text.read_source(source)).ids)

    def part_locations(self, source: Source) -> list[Region]:
        """Return the character span of each token."""
        content = text.read_source(source)
        return character_spans(content, self._encode(content).offsets)

    def extra_files(self) -> dict[str, str]:
        """Return a dict from the name of the tokenizer file to its text. The dict is empty before training."""
        return {} if self.tokenizer is None else {TOKENIZER_FILE: self.tokenizer.to_str()}

    def load_extra_files(self, files: dict[str, str]) -> None:
        """Load the vocabulary from the files that `extra_files` returned."""
        if TOKENIZER_FILE not in files:
            raise CheckpointError(f"the saved text encoder has no {TOKENIZER_FILE}; the file is incomplete")
        try:
            with convert_rust_panics():
                self.tokenizer = Tokenizer.from_str(files[TOKENIZER_FILE])
                self.tokenizer.enable_truncation(self.max_length)
        except Exception as error:  # the tokenizers library raises exceptions of the type Exception itself
            raise CheckpointError(f"the saved {TOKENIZER_FILE} cannot be read ({error})") from error
        # Tokenizers with other settings are rejected, because a regular expression in a manipulated file might never
        # terminate.
        if _preprocessing_config(self.tokenizer) != _preprocessing_config(_untrained_tokenizer()):
            problem = "splits texts differently from this encoder; the file was modified"
            raise CheckpointError(f"the saved {TOKENIZER_FILE} {problem}")
        if max(self.tokenizer.get_vocab().values(), default=0) >= self.vocab_size:
            limit = f"the recipe's vocab_size = {self.vocab_size}"
            raise CheckpointError(f"the saved {TOKENIZER_FILE} has more tokens than {limit}")

    def _encode(self, content: str) -> Encoding:
        if self.tokenizer is None:
            raise CheckpointError("this text encoder has no vocabulary; train it, or load a trained space")
        try:
            with convert_rust_panics():
                return self.tokenizer.encode(content)
        except RuntimeError as error:
            raise MediaError(f"the text {content[:MESSAGE_CHARS]!r} cannot be tokenised ({error})") from error


def _untrained_tokenizer() -> Tokenizer:
    """Return a tokenizer without a vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _preprocessing_config(tokenizer: Tokenizer) -> list[object]:
    """Return the settings of a tokenizer as a dict, without the vocabulary."""
    config = json.loads(tokenizer.to_str())
    return [config["normalizer"], config["pre_tokenizer"], config["post_processor"], config["model"]["type"]]
