"""The learned vocabulary of text encoders."""

import torch

from tests.encoders.conftest import CAPTIONS
from triptych.encoders import ENCODERS
from triptych.interfaces import Source


def test_vocabulary_does_not_depend_on_order():
    one, other = ENCODERS["text_transformer"](), ENCODERS["text_transformer"]()
    one.fit_vocabulary(Source("text", c) for c in CAPTIONS)
    other.fit_vocabulary(Source("text", c) for c in [*CAPTIONS[::-1], CAPTIONS[0]])
    assert one.extra_files() == other.extra_files()


def test_text_files_and_strings_are_equivalent(tmp_path):
    encoder = ENCODERS["text_transformer"]()
    encoder.fit_vocabulary(Source("text", c) for c in CAPTIONS)
    (tmp_path / "note.txt").write_text(f"  {CAPTIONS[0]}\n")
    from_file = encoder.prepare(Source("text", tmp_path / "note.txt"))
    assert torch.equal(from_file, encoder.prepare(Source("text", CAPTIONS[0])))
