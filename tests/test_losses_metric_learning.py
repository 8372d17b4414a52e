"""The losses against pytorch-metric-learning: equal where definitions agree, and the differences where they do not."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as peer

from tests.test_losses import assert_same_loss_and_gradients, random_embeddings
from triptych.errors import InputError
from triptych.losses import Cosine, Dot, InfoNCE, Mahalanobis, Triplet, infonce_loss

COSINE = distances.CosineSimilarity()
GROUPS = {
    "one positive": [0, 1, 2, 3, 4, 5, 6],
    "several positives": [0, 1, 1, 2, 0, 0, 3],
    "two groups": [0, 1, 0, 1, 0, 1, 1],
}
TEMPERATURES = [0.01, 0.07, 0.5, 2.0]
cases = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)


def across(loss, a, b, group, miner=None):
    """Apply a peer's loss to anchors a with positives and negatives in b."""
    labels, others = group, group.clone()  # with the same tensor object, the library excludes i = j
    mined = None if miner is None else miner(a, labels, ref_emb=b, ref_labels=others)
    return loss(a, labels, mined, ref_emb=b, ref_labels=others)


@cases
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("positives", "peer_class"), [("pairwise", peer.NTXentLoss), ("supcon", peer.SupConLoss)])
def test_infonce_equals_ntxent_and_supcon(positives, peer_class, temperature, group):
    (a, b), group = random_embeddings(len(group), 5), torch.tensor(group)
    options = {"temperature": temperature, "positives": positives}
    expected = across(peer_class(temperature=temperature), a, b, group)
    ours = InfoNCE(a_weight=1.0, b_weight=0.0, **options).double()(a, b, group=group)
    assert_same_loss_and_gradients(ours, expected, (a, b))
    both = (expected + across(peer_class(temperature=temperature), b, a, group)) / 2
    assert_same_loss_and_gradients(InfoNCE(**options).double()(a, b, group=group), both, (a, b))


@cases
@pytest.mark.parametrize(("positives", "peer_class"), [("pairwise", peer.NTXentLoss), ("supcon", peer.SupConLoss)])
def test_infonce_equals_ntxent_and_supcon_in_float32_and_with_dot_products(positives, peer_class, group):
    (a, b), group = random_embeddings(len(group), 5, torch.float32), torch.tensor(group)
    expected = across(peer_class(temperature=0.2), 7 * a, b / 3, group)  # embeddings of any length
    ours = InfoNCE(temperature=0.2, a_weight=1.0, b_weight=0.0, positives=positives)(a, b, group=group)
    assert_same_loss_and_gradients(ours, expected, (a, b), rel=1e-4)
    dot = distances.DotProductSimilarity(normalize_embeddings=False)
    expected = across(peer_class(temperature=2.0, distance=dot), a, b, group)
    loss = InfoNCE(temperature=2.0, a_weight=1.0, b_weight=0.0, positives=positives)
    assert_same_loss_and_gradients(loss(a, b, group=group, similarity=Dot()), expected, (a, b), rel=1e-4)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2], [0, 1, 2, 2, 3, 4]])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_infonce_loss_equals_ntxent_and_supcon_on_one_set(labels, temperature):
    """Items with labels, without pairs: some rows have several positives, some have none."""
    (x, _), labels = random_embeddings(len(labels), 5), torch.tensor(labels)
    others = ~torch.eye(len(labels), dtype=torch.bool)
    positive_mask = (labels[:, None] == labels) & others
    for peer_class, is_supcon in ((peer.NTXentLoss, False), (peer.SupConLoss, True)):
        ours = infonce_loss(Cosine()(x, x) / temperature, positive_mask, others, is_supcon)
        assert_same_loss_and_gradients(ours, peer_class(temperature=temperature)(x, labels), (x,))


def test_batches_without_positives_or_negatives():
    """Where the loss is not defined, the library returns 0."""
    x, y = random_embeddings(4, 5)
    labels, others = torch.arange(4), ~torch.eye(4, dtype=torch.bool)
    assert peer.NTXentLoss()(x, labels).item() == peer.SupConLoss()(x, labels).item() == 0
    with pytest.raises(InputError, match="no row has a positive among its candidates"):
        infonce_loss(Cosine()(x, x), (labels[:, None] == labels) & others, others)
    one_group = torch.zeros(4, dtype=torch.long)
    assert across(peer.NTXentLoss(), x, y, one_group).item() == across(peer.SupConLoss(), x, y, one_group).item() == 0
    assert InfoNCE(positives="pairwise")(x, y, group=one_group).item() == 0
    assert InfoNCE(positives="supcon")(x, y, group=one_group).item() > 0.5


MINERS = {
    "hardest": miners.BatchHardMiner(distance=COSINE),
    "semi_hard": miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard", distance=COSINE),
    "all": None,
}


@pytest.mark.parametrize("margin", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("negatives", MINERS)
def test_triplet_equals_triplet_margin_loss_with_one_positive(negatives, margin):
    a, b = random_embeddings(9, 5)
    loss = peer.TripletMarginLoss(margin=margin, distance=COSINE, reducer=reducers.SumReducer())
    sides = ((a, b), (b, a))
    expected = [across(loss, x, y, torch.arange(9), MINERS[negatives]) for x, y in sides]
    assert_same_loss_and_gradients(Triplet(margin, negatives, "a", "sum")(a, b), expected[0], (a, b))
    assert_same_loss_and_gradients(Triplet(margin, negatives, "b", "sum")(a, b), expected[1], (a, b))
    assert_same_loss_and_gradients(Triplet(margin, negatives, "both", "sum")(a, b), sum(expected), (a, b))
    mean = Triplet(margin, negatives, "a")(a, b)
    assert mean.item() == pytest.approx(expected[0].item() / 9, rel=1e-9)  # over all anchors


@pytest.mark.parametrize("negatives", ["hardest", "semi_hard", "all"])
def test_triplet_equals_triplet_margin_loss_with_euclidean_distances(negatives):
    """The library's default distance is the Euclidean distance of normalised embeddings."""
    a, b = random_embeddings(9, 5)
    distance = distances.LpDistance()
    miner = {
        "hardest": miners.BatchHardMiner(),
        "semi_hard": miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard"),
        "all": None,
    }[negatives]
    loss = peer.TripletMarginLoss(margin=0.3, distance=distance, reducer=reducers.SumReducer())
    expected = across(loss, a, b, torch.arange(9), miner)
    unit = F.normalize(a, dim=1), F.normalize(b, dim=1)
    ours = Triplet(0.3, negatives, "a", "sum")(*unit, similarity=Mahalanobis(5))
    assert_same_loss_and_gradients(ours, expected, (a, b))


def test_triplet_averages_over_all_anchors_and_the_library_over_active_triplets():
    a, b = random_embeddings(9, 5)
    loss = peer.TripletMarginLoss(margin=0.1, distance=COSINE)
    scores = Cosine()(a, b).detach()
    violations = (0.1 + scores - scores.diagonal()[:, None]).relu()[~torch.eye(9, dtype=torch.bool)]
    num_active = int((violations > 0).sum())
    assert 0 < num_active < len(violations)
    assert across(loss, a, b, torch.arange(9)).item() == pytest.approx(violations.sum().item() / num_active)
    assert Triplet(0.1, "all", "a")(a, b).item() == pytest.approx(violations.sum().item() / 9)


@pytest.mark.parametrize("negatives", ["hardest", "all"])
def test_the_only_positive_of_a_triplet_is_the_other_item_of_the_row(negatives):
    """With several items per group, the library also uses the other positives; both exclude them as negatives."""
    (a, b), group = random_embeddings(7, 5), torch.tensor([0, 1, 1, 2, 0, 0, 3])
    loss = peer.TripletMarginLoss(margin=0.3, distance=COSINE, reducer=reducers.SumReducer())
    ours = Triplet(0.3, negatives, "a", "sum")(a, b, group=group)
    scores, rows, columns = Cosine()(a, b), *(group[:, None] != group).nonzero(as_tuple=True)
    if negatives == "hardest":
        rows = torch.arange(7)
        columns = scores.masked_fill(group[:, None] == group, -torch.inf).argmax(dim=1)
    expected = loss(a, group, (rows, rows, columns), ref_emb=b, ref_labels=group.clone())  # anchor, positive, negative
    assert_same_loss_and_gradients(ours, expected, (a, b))
    assert across(loss, a, b, group, MINERS[negatives]).item() > 1.02 * ours.item()


def test_semi_hard_negatives_of_the_library_within_the_margin_are_another_definition():
    """TripletMarginMiner selects all negatives within the margin; Triplet selects the highest-scoring of them."""
    a, b = random_embeddings(9, 5)
    miner = miners.TripletMarginMiner(margin=0.5, type_of_triplets="semihard", distance=COSINE)
    loss = peer.TripletMarginLoss(margin=0.5, distance=COSINE, reducer=reducers.SumReducer())
    all_within_margin = across(loss, a, b, torch.arange(9), miner).item()
    scores = Cosine()(a, b).detach()
    gaps = (scores.diagonal()[:, None] - scores).masked_fill(torch.eye(9, dtype=torch.bool), torch.inf)
    is_semi_hard = (gaps > 0) & (gaps < 0.5)
    assert all_within_margin == pytest.approx((0.5 - gaps[is_semi_hard]).sum().item())
    closest = gaps.masked_fill(~is_semi_hard, torch.inf).amin(dim=1)
    ours = Triplet(0.5, "semi_hard", "a", "sum")(a, b).item()
    assert ours == pytest.approx((0.5 - closest).relu().sum().item())
    assert ours < all_within_margin
