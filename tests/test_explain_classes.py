"""The contributions of classes to a score, compared with a loop over the formula."""

import math

import pytest
import torch
from torch import nn

from tests.heads.stub_classifier import CLASSES, StubClassifier
from triptych.encoders.text_transformer import TextTransformer
from triptych.explain import list_class_contributions
from triptych.recipe import Recipe
from triptych.space import Space


@pytest.fixture
def space():
    """A space whose audio encoder has three classes."""
    torch.manual_seed(0)
    overrides = ["space.embed_dim=16", "space.heads.audio={name='class_names', temperature=2.0}"]
    recipe = Recipe.load("trimodal", overrides).restrict_to({"audio", "text"})
    space = Space(recipe, {"audio": StubClassifier(), "text": TextTransformer(feature_dim=16)})
    nn.init.normal_(space.heads["audio"].get_parameter("class_embeddings"))
    return space.double().eval()


@torch.inference_mode()
def test_contributions_of_classes_match_a_loop_and_sum_to_the_score(space):
    parts = torch.randn(1, 4, 7, dtype=torch.float64)
    other = torch.randn(1, 16, dtype=torch.float64)
    head = space.heads["audio"]
    weights = head.class_weights(parts.mean(dim=1))[0].tolist()
    vector = [sum(w * e[d] for w, e in zip(weights, head.class_embeddings.tolist(), strict=True)) for d in range(16)]
    norms = math.sqrt(sum(v * v for v in vector)) * math.sqrt(sum(v * v for v in other[0].tolist()))
    expected = {
        name: w * sum(e * o for e, o in zip(row, other[0].tolist(), strict=True)) / norms
        for name, w, row in zip(CLASSES, weights, head.class_embeddings.tolist(), strict=True)
    }
    classes = list_class_contributions(space, "audio", parts, other)
    assert {c.name: c.contribution for c in classes} == pytest.approx(expected)
    assert [c.name for c in classes] == sorted(expected, key=lambda name: -expected[name])
    assert sum(c.weight for c in classes) == pytest.approx(1)
    cosine = float(nn.functional.cosine_similarity(head(parts.mean(dim=1)), other))
    assert sum(c.contribution for c in classes) == pytest.approx(cosine)
    assert len(list_class_contributions(space, "audio", parts, other, count=2)) == 2


def test_other_heads_have_no_classes(space):
    assert list_class_contributions(space, "text", torch.zeros(1, 1, 16), torch.zeros(1, 16)) == []
