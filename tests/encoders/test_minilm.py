"""MiniLM against sentence-transformers."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from tests.encoders.test_encoders_pretrained import build_encoder
from triptych.data.loader import collate
from triptych.encoders import minilm
from triptych.errors import MediaError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


@torch.inference_mode()
def test_minilm_matches_published_network():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = build_encoder("minilm")
    folder = minilm.WEIGHTS.find()
    assert folder is not None
    texts = ["a dog", "Two birds sing by the RIVER, this morning!", "ein Hund läuft 🐕", "x", "rain " * 300]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = sentence_transformers.SentenceTransformer(str(folder.parent), device="cpu").encode(texts)
        parts, mask = encoder(*collate([encoder.prepare(Source("text", text)) for text in texts]))
    assert mask.sum(dim=1).tolist()[:2] == [4, 12]  # with [CLS] and [SEP]
    assert mask.sum(dim=1)[-1] == 256
    mean = (parts * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    assert torch.allclose(F.normalize(mean, dim=1), torch.from_numpy(expected), atol=1e-5)


def test_minilm_truncates_long_texts_with_one_warning():
    encoder = build_encoder("minilm")
    long = Source("text", "the quick brown fox " * 100)
    with pytest.warns(UserWarning, match=r"more than 256 tokens are truncated, as 'the quick brown"):
        assert encoder.prepare(long).shape == (256,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoder.prepare(long).shape == (256,)
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        encoder.prepare(Source("text", " \n "))
