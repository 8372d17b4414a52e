"""Projection heads, compared with the formula in NumPy, and properties of every head."""

import numpy as np
import pytest
import torch
from scipy.special import erf

from tests.heads.stub_classifier import StubClassifier
from triptych.errors import RecipeError
from triptych.heads import HEADS, make_head
from triptych.heads.centred import CentredHead
from triptych.heads.class_names import ClassNamesHead
from triptych.heads.identity import IdentityHead
from triptych.heads.linear import LinearHead
from triptych.heads.mlp import MLPHead
from triptych.recipe import Recipe
from triptych.settings import Component
from triptych.space import Space

INPUT_DIM = {"none": 5, "centred": 5}  # the other heads map 7 to 5 dimensions


@pytest.fixture(params=HEADS.known_names())
def head(request):
    torch.manual_seed(0)
    head = HEADS[request.param](input_dim=INPUT_DIM.get(request.param, 7), embed_dim=5)
    head.bind(StubClassifier())
    if isinstance(head, ClassNamesHead):
        torch.nn.init.normal_(head.class_embeddings)
    return head.double().eval()


def make_inputs(head, *shape):
    input_dim = 5 if isinstance(head, IdentityHead | CentredHead) else 7
    return torch.randn(*shape, input_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_parts_are_projected_like_pooled_outputs(head):
    x = make_inputs(head, 3, 4)
    projected = head(x)
    assert projected.shape == (3, 4, 5)
    for i in range(3):
        assert torch.allclose(projected[i], head(x[i]), atol=1e-12)
        for j in range(4):
            assert torch.allclose(projected[i, j], head(x[i, j]), atol=1e-12)


def test_gradients_match_finite_differences(head):
    assert torch.autograd.gradcheck(head, (make_inputs(head, 2).requires_grad_(),))


def test_the_linear_head_is_a_matrix_product():
    head = LinearHead(7, 5)
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    (weight,) = (p.detach().numpy() for p in head.parameters())
    np.testing.assert_allclose(head(torch.from_numpy(x)).detach().numpy(), x @ weight.T, atol=1e-6)


def test_the_mlp_head_is_two_layers_with_gelu():
    head = MLPHead(7, 5, hidden_dim=11, dropout=0.5).double().eval()
    x = np.random.default_rng(0).normal(size=(3, 7))
    w1, b1, w2, b2 = (p.detach().numpy() for p in head.parameters())
    assert w1.shape == (11, 7)
    hidden = x @ w1.T + b1
    expected = (hidden * (1 + erf(hidden / np.sqrt(2))) / 2) @ w2.T + b2
    np.testing.assert_allclose(head(torch.from_numpy(x)).detach().numpy(), expected, atol=1e-12)
    torch.manual_seed(0)
    assert not torch.allclose(head.train()(torch.from_numpy(x)), torch.from_numpy(expected)), "no dropout in training"


@pytest.mark.parametrize("settings", [{"hidden_dim": 0}, {"dropout": 1.0}, {"dropout": float("nan")}])
def test_invalid_settings_raise(settings):
    with pytest.raises(RecipeError, match=f"mlp: {next(iter(settings))} = .*: must be between"):
        MLPHead(7, 5, **settings)


def test_a_recipe_sets_the_head_by_name_or_with_its_settings():
    assert Recipe.load("trimodal").space.head == Component("linear")
    assert Recipe.load("trimodal", ["space.head=mlp"]).space.head == Component(
        "mlp", {"hidden_dim": 1024, "dropout": 0.0}
    )
    recipe = Recipe.load("trimodal", ['space.head={name="mlp", hidden_dim=32}', "space.head.dropout=0.25"])
    assert recipe.space.head.settings == {"hidden_dim": 32, "dropout": 0.25}
    assert Recipe.parse(recipe.to_toml()) == recipe
    space = Space(recipe)
    assert {type(space.heads[m]) for m in space.modalities} == {MLPHead}
    with pytest.raises(
        RecipeError, match=r"space\.head: head 'mpl' is unknown; known: centred, class_names, linear, mlp, none"
    ):
        Recipe.load("trimodal", ["space.head=mpl"])
    with pytest.raises(RecipeError, match=r"space\.head: key 'input_dim' is unknown; known: dropout, hidden_dim, name"):
        Recipe.load("trimodal", ['space.head={name="mlp", input_dim=3}'])


def test_the_head_of_a_modality_has_the_dimensions_of_its_encoder():
    assert isinstance(make_head(Component("none"), "audio", StubClassifier(64), 64, 64), IdentityHead)
    message = r"the head of audio: none: features have 32 dimensions, but space\.embed_dim is 64; set .* = 32"
    with pytest.raises(RecipeError, match=message):
        make_head(Component("none"), "audio", StubClassifier(32), 32, 64)
    space = Space(Recipe.load("trimodal", ["space.pooling=mean_max", "space.embed_dim=5"]))
    assert space.heads["text"](torch.zeros(2, 2 * space.encoder("text").feature_dim)).shape == (2, 5)


def test_a_modality_has_its_own_head():
    overrides = ["space.heads.text=none", 'space.heads.image={name="mlp", hidden_dim=8}', "space.embed_dim=128"]
    recipe = Recipe.load("trimodal", overrides)
    heads = {m: type(head).__name__ for m, head in Space(recipe).heads.items()}
    assert heads == {"image": "MLPHead", "audio": "LinearHead", "text": "IdentityHead"}
    assert Recipe.parse(recipe.to_toml()) == recipe
    assert set(recipe.restrict_to({"image", "audio"}).space.heads) == {"image"}
    with pytest.raises(
        RecipeError, match=r"space\.heads\.text: head 'mpl' is unknown; known: centred, class_names, linear, mlp, none"
    ):
        Recipe.load("trimodal", ["space.heads.text=mpl"])
    with pytest.raises(RecipeError, match=r"space\.heads: key 'video' is unknown"):
        Recipe.load("trimodal", ["space.heads.video=none"])
