"""InfoNCE against the ranking losses of sentence-transformers."""

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)
from sentence_transformers.util import dot_score

from tests.test_losses import assert_same_loss_and_gradients, random_embeddings
from triptych.losses import Dot, InfoNCE

pytestmark = pytest.mark.filterwarnings("ignore:The MultipleNegativesSymmetricRankingLoss is deprecated")

LOSSES = {
    "one direction": (MultipleNegativesRankingLoss, 0.0),
    "symmetric": (MultipleNegativesSymmetricRankingLoss, 0.5),
}


def ranking_loss(cls, a, b, **options):
    """Compute a loss of sentence-transformers from embeddings, without a model."""
    return cls(model=torch.nn.Identity(), **options).compute_loss_from_embeddings([a, b], None)


@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0])
@pytest.mark.parametrize(("cls", "b_weight"), LOSSES.values(), ids=LOSSES)
def test_infonce_equals_multiple_negatives_ranking(cls, b_weight, scale):
    a, b = random_embeddings(9, 5)
    loss = InfoNCE(temperature=1 / scale, a_weight=1 - b_weight, b_weight=b_weight).double()
    assert_same_loss_and_gradients(loss(a, b), ranking_loss(cls, a, b, scale=scale), (a, b))


@pytest.mark.parametrize(("cls", "b_weight"), LOSSES.values(), ids=LOSSES)
def test_infonce_of_dot_products_equals_multiple_negatives_ranking(cls, b_weight):
    a, b = random_embeddings(9, 5)
    loss = InfoNCE(temperature=1.0, a_weight=1 - b_weight, b_weight=b_weight).double()
    expected = ranking_loss(cls, a, b, scale=1.0, similarity_fct=dot_score)
    assert_same_loss_and_gradients(loss(a, b, similarity=Dot()), expected, (a, b))


def test_items_of_the_same_group_are_negatives_only_in_sentence_transformers():
    (a, b), group = random_embeddings(6, 5), torch.tensor([0, 0, 1, 2, 3, 4])
    expected = ranking_loss(MultipleNegativesSymmetricRankingLoss, a, b, scale=1.0).item()
    loss = InfoNCE(temperature=1.0).double()
    assert loss(a, b).item() == pytest.approx(expected)
    assert loss(a, b, group=group).item() < expected - 0.01
