"""Panics of Rust libraries become RuntimeErrors."""

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from triptych.encoders.rust_panics import convert_rust_panics


def test_panic_becomes_runtime_error():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")  # backtracks without end
    with pytest.raises(RuntimeError), convert_rust_panics():
        tokenizer.encode("x" * 200)


def test_other_exceptions_pass():
    with pytest.raises(KeyboardInterrupt), convert_rust_panics():
        raise KeyboardInterrupt
