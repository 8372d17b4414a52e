"""The class-names head, compared with naive loops over the formulas."""

import copy

import pytest
import torch

from tests.heads.stub_classifier import CLASSES, StubClassifier
from triptych.encoders.image_cnn import ImageCNN
from triptych.errors import RecipeError
from triptych.heads.class_names import ClassNamesHead, decorrelate


def make_head(**settings) -> ClassNamesHead:
    head = ClassNamesHead(7, 5, **settings)
    head.bind(StubClassifier())
    torch.nn.init.normal_(head.class_embeddings, generator=torch.Generator().manual_seed(0))
    return head.double()


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (3.0, 0), (0.5, 2), (1.0, 1), (2.0, 7)])
def test_the_head_matches_a_loop_over_the_formula(temperature, top_k):
    head = make_head(temperature=temperature, top_k=top_k)
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    probabilities, embeddings = StubClassifier().class_probabilities(x).tolist(), head.class_embeddings.tolist()
    for row, output in zip(probabilities, head(x).tolist(), strict=True):
        likely = sorted(range(3), key=lambda c: -row[c])[: top_k or 3]
        total = sum(row[c] ** (1 / temperature) for c in likely)
        expected = [0.0] * 5
        for c in likely:
            weight = row[c] ** (1 / temperature) / total
            expected = [value + weight * e for value, e in zip(expected, embeddings[c], strict=True)]
        assert output == pytest.approx(expected)


def test_probabilities_of_zero_give_finite_outputs_and_gradients():
    head = make_head()
    x = torch.full((1, 7), -1e4, dtype=torch.float64, requires_grad=True)
    output = head(x)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_decorrelation_matches_a_loop_over_the_formula(strength):
    e = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) @ torch.diag(
        torch.tensor([3.0, 1.0, 0.1], dtype=torch.float64)
    )
    mean = [sum(row[d] for row in e.tolist()) / 6 for d in range(3)]
    centred = [[value - m for value, m in zip(row, mean, strict=True)] for row in e.tolist()]
    covariance = [[sum(row[i] * row[j] for row in centred) / 6 for j in range(3)] for i in range(3)]
    variance = sum(covariance[d][d] for d in range(3)) / 3
    output = decorrelate(e, strength).tolist()
    for row, result in zip(centred, output, strict=True):  # (I + strength · Σ / σ) result = row
        product = [
            result[i] + strength / variance * sum(covariance[i][j] * result[j] for j in range(3)) for i in range(3)
        ]
        assert product == pytest.approx(row)


def test_phrases_have_the_name_and_the_category_in_every_prompt():
    head = ClassNamesHead(7, 5, prompts=("{}", "the sound of {}"), categories=True)
    head.bind(StubClassifier())
    cat = ["cat, house cat", "the sound of cat, house cat"]
    assert head.class_phrases()[:2] == [["dog", "the sound of dog"], [*cat, "animal", "the sound of animal"]]
    encoder = StubClassifier()
    setattr(encoder, "class_categories", tuple)  # noqa: B010 - a stub without categories
    head.bind(encoder)
    assert head.class_phrases()[1] == cat
    head.bind(StubClassifier())
    head.categories = False
    assert head.class_phrases()[1] == cat


def test_directions_are_removed_from_the_class_embeddings():
    head, embeddings = make_head(), torch.randn(3, 5, dtype=torch.float64)
    directions = torch.linalg.qr(torch.randn(5, 2, dtype=torch.float64)).Q.T
    head.load_class_embeddings(embeddings, directions[:0])
    assert torch.allclose(head.class_embeddings, embeddings - embeddings.mean(dim=0))
    head.load_class_embeddings(embeddings, directions)
    assert (head.class_embeddings @ directions.T).abs().max() < 1e-12
    kept = torch.linalg.svd(directions).Vh[2:]
    assert torch.allclose(head.class_embeddings @ kept.T, (embeddings - embeddings.mean(dim=0)) @ kept.T)


def test_the_encoder_is_not_a_part_of_the_head():
    head = make_head()
    assert list(head.state_dict()) == ["class_embeddings"]
    assert list(head.children()) == []
    assert head.class_embeddings.shape == (len(CLASSES), 5)
    x = torch.randn(2, 7, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(head)(x), head(x))


def test_an_encoder_without_classes_is_refused():
    encoder = ImageCNN()
    with pytest.raises(RecipeError, match=r"class_names: the encoder is not a classifier; set an encoder with classes"):
        ClassNamesHead(encoder.feature_dim, 5).bind(encoder)
    with pytest.raises(RecipeError, match=r'class_names: pooling must be "mean"'):
        ClassNamesHead(14, 5).bind(StubClassifier())


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"top_k": -1}, {"decorrelation": -1.0}, {"prompts": ()}, {"prompts": ("a",)}]
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(RecipeError, match=f"class_names: {next(iter(settings))} = "):
        ClassNamesHead(7, 5, **settings)
