"""Calls of objectives with plain tensors: embeddings, parts with masks, score matrices, and invalid inputs."""

from itertools import combinations

import pytest
import torch

from tests.similarities.test_similarities import random_features
from triptych.errors import InputError
from triptych.interfaces import Features, Pair
from triptych.objectives.align_uniform import AlignUniform
from triptych.objectives.distill import Distill
from triptych.objectives.infonce import InfoNCE
from triptych.objectives.matching import Matching
from triptych.objectives.objective import PrecomputedScores
from triptych.objectives.sigmoid import Sigmoid
from triptych.objectives.triplet import Triplet
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion

N, DIM = 5, 6


def random_tensor(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


A, B = random_tensor(N, DIM, seed=1), random_tensor(N, DIM, seed=2)
REGIONS, WORDS = random_tensor(N, 4, DIM, seed=3), random_tensor(N, 7, DIM, seed=4)
REGION_MASK = torch.ones(N, 4, dtype=torch.bool)
WORD_MASK = torch.arange(7) < torch.tensor([7, 2, 5, 1, 3])[:, None]


def test_embeddings_of_any_length_have_the_same_loss():
    lengths = torch.tensor([0.1, 3.0, 20.0, 0.5, 1.0])[:, None]
    for objective in (InfoNCE(), Sigmoid(), Triplet(), Matching()):
        assert objective(A * lengths, 7 * B).item() == pytest.approx(objective(A, B).item(), rel=1e-5)
    assert InfoNCE()(A * lengths, B, similarity=Dot()) != InfoNCE()(A, B, similarity=Dot())


@pytest.mark.parametrize("similarity", [Dot(), Mahalanobis(DIM, "diagonal"), Cosine()], ids=lambda s: type(s).__name__)
def test_an_explicit_similarity_scores_the_embeddings(similarity):
    scores = similarity(A, B)
    for objective in (InfoNCE(), Triplet(negatives="hardest"), Matching()):
        assert objective(A, B, similarity=similarity).item() == pytest.approx(objective(scores=scores).item(), rel=1e-5)


@pytest.mark.parametrize("similarity", [WordRegion(), Matchmap(), Matchmap("sisa")])
def test_parts_with_masks_are_scored_by_a_similarity_of_parts(similarity):
    regions, words = REGIONS.clone().requires_grad_(), WORDS.clone().requires_grad_()
    loss = InfoNCE()(regions, words, similarity=similarity, a_mask=REGION_MASK, b_mask=WORD_MASK)
    scores = similarity(Features(A, REGIONS, REGION_MASK), Features(B, WORDS, WORD_MASK))
    assert loss.item() == pytest.approx(InfoNCE()(scores=scores).item(), rel=1e-6)
    loss.backward()
    assert words.grad is not None
    assert (words.grad[~WORD_MASK] == 0).all()
    assert (words.grad[WORD_MASK].abs().sum(dim=1) > 0).all()
    garbage = WORDS.masked_fill(~WORD_MASK.unsqueeze(2), 1e9)
    same = InfoNCE()(REGIONS, garbage, similarity=similarity, a_mask=REGION_MASK, b_mask=WORD_MASK)
    assert same.item() == pytest.approx(loss.item(), rel=1e-6)


def test_the_mean_over_a_permutation_of_rows_and_groups_is_the_same():
    order, group = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([7, 7, -1, 5, 5])
    for objective in (InfoNCE(), Sigmoid(), Triplet(), Matching()):
        value = objective(A, B, group=group)
        assert objective(A[order], B[order], group=group[order]).item() == pytest.approx(value.item(), rel=1e-5)
        assert value.item() != pytest.approx(objective(A, B).item(), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted_to_float32(dtype):
    a, b = A.to(dtype), B.to(dtype)
    distill, teacher = Distill(num_classes=3, embed_dim=DIM), random_tensor(N, 3).softmax(dim=1)
    assert torch.equal(InfoNCE()(a, b), InfoNCE()(a.float(), b.float()))
    assert torch.equal(Matching()(scores=a @ b.T), Matching()(scores=(a @ b.T).float()))
    expected = distill(a.float(), b.float(), teacher_targets=teacher)
    assert torch.equal(distill(a, b, teacher_targets=teacher), expected)
    assert InfoNCE()(A.double(), B.double()).dtype == torch.float64


def test_scores_have_gradients_and_need_no_embeddings():
    scores = random_tensor(N, N, dtype=torch.float64).requires_grad_()
    group = torch.tensor([0, 1, 1, 2, 3])
    for objective in (InfoNCE().double(), Sigmoid().double(), Triplet(negatives="all"), Matching(epsilon=0.5)):
        assert torch.autograd.gradcheck(lambda s, loss=objective: loss(scores=s, group=group), (scores,))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": A}, "b is missing; pass embeddings a and b, or scores"),
        ({}, "a is missing"),
        ({"a": A, "b": B[:3]}, r"a is \(5, 6\) and b is \(3, 6\); need the same \(N, D\)"),
        ({"a": A, "b": B[:, :4]}, r"a is \(5, 6\) and b is \(5, 4\)"),
        ({"a": A, "b": WORDS}, r"a is \(5, 6\) and b is \(5, 7, 6\)"),
        ({"a": A[:0], "b": B[:0]}, "0 rows"),
        ({"a": A[0], "b": B[0]}, r"a is \(6,\); need embeddings \(N, D\)"),
        ({"a": A.long(), "b": B.long()}, r"a is torch\.int64; need a floating-point tensor"),
        ({"a": A, "b": B.numpy()}, "b is ndarray; need a floating-point tensor"),
        ({"a": A, "b": B.double()}, r"a is torch\.float32 and b is torch\.float64"),
        ({"a": A, "b": B, "group": torch.arange(4)}, r"group is \(4,\) torch\.int64; need \(5,\) integers"),
        ({"a": A, "b": B, "group": torch.eye(5).long()}, r"group is \(5, 5\)"),
        ({"a": A, "b": B, "group": torch.arange(5.0)}, r"torch\.float32; need \(5,\) integers"),
        ({"a": A, "b": B, "group": [0, 1, 2, 3, 4]}, r"group is list; need a tensor of integers \(5,\)"),
        ({"a": A, "b": B, "a_mask": REGION_MASK}, "a_mask is set, but Cosine compares embeddings"),
        ({"a": A, "b": B, "teacher_targets": A.softmax(1)}, "InfoNCE does not read teacher_targets"),
        ({"a": A.masked_fill(A > 1, torch.nan), "b": B}, "a.embedding contains NaN or infinity"),
        ({"a": A, "b": B.masked_fill(B > 1, torch.inf)}, "b.embedding contains NaN or infinity"),
        ({"a": REGIONS, "b": WORDS}, r"a is \(5, 4, 6\); need embeddings .*, or a similarity that compares parts"),
        ({"scores": A}, r"scores is \(5, 6\); need a square matrix"),
        ({"scores": A[:, :5] > 0}, r"scores is torch\.bool; need a floating-point tensor"),
        ({"scores": A[:, :5].masked_fill(A[:, :5] > 1, torch.nan)}, "scores contains NaN"),
        ({"scores": A[:, :5], "group": torch.arange(4)}, r"group is \(4,\)"),
        ({"scores": A[:0, :0]}, "0 rows"),
        ({"a": A, "b": B, "scores": A[:, :5]}, "scores cannot be combined with a, b; pass scores, or a and b"),
        ({"scores": A[:, :5], "similarity": Dot()}, "scores cannot be combined with similarity"),
        ({"scores": A[:, :5], "b_mask": WORD_MASK}, "scores cannot be combined with b_mask"),
        ({"a": A, "b": B, "similarity": "dot"}, "similarity is 'dot'; need an instance"),
        ({"a": A, "b": B, "similarity": Dot}, "similarity is <class .*Dot'>; need an instance"),
    ],
)  # fmt: skip
def test_invalid_tensors_raise(inputs, message):
    with pytest.raises(InputError, match=message):
        InfoNCE()(**inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": REGIONS, "b": WORDS, "b_mask": WORD_MASK}, r"a has parts, but no mask; set a_mask, bool \(5, 4\)"),
        ({"a": REGIONS, "b": WORDS, "a_mask": REGION_MASK}, r"b has parts, but no mask; set b_mask, bool \(5, 7\)"),
        ({"a": A, "b": B}, r"a is \(5, 6\), but WordRegion compares parts; need \(N, L, D\)"),
        ({"a": REGIONS[:, :0], "b": WORDS}, "with L at least 1"),
        (
            {"a": REGIONS, "b": WORDS, "a_mask": REGION_MASK, "b_mask": REGION_MASK},
            r"b_mask is \(5, 4\) torch\.bool; need bool \(5, 7\)",
        ),
        (
            {"a": REGIONS, "b": WORDS, "a_mask": REGION_MASK.long(), "b_mask": WORD_MASK},
            r"a_mask is \(5, 4\) torch\.int64; need bool",
        ),
        ({"a": REGIONS, "b": WORDS, "a_mask": REGION_MASK, "b_mask": ~WORD_MASK}, "row 0 is all padding"),
        (
            {"a": REGIONS, "b": WORDS / 0, "a_mask": REGION_MASK, "b_mask": WORD_MASK},
            r"b\.embedding contains NaN or infinity",
        ),
    ],
)
def test_invalid_parts_raise(inputs, message):
    with pytest.raises(InputError, match=message):
        InfoNCE()(similarity=WordRegion(), **inputs)


def test_objectives_of_embeddings_do_not_read_scores():
    distill = Distill(num_classes=3, embed_dim=DIM)
    for objective in (AlignUniform(), distill):
        for name, value in {"scores": A[:, :5], "similarity": Cosine()}.items():
            with pytest.raises(InputError, match=f"{type(objective).__name__} reads embeddings, .* without {name}"):
                objective(**{name: value})
    with pytest.raises(InputError, match="in a call, pass teacher_targets"):
        distill(A, B)
    with pytest.raises(InputError, match=r"embedding is torch\.float64, and the class heads are torch\.float32"):
        distill(A.double(), B.double(), teacher_targets=A[:, :3].softmax(1))


def test_scores_cannot_be_streamed():
    for objective in (InfoNCE(stream_block=2), Sigmoid(stream_block=2), Matching(stream_block=2)):
        with pytest.raises(InputError, match=r"PrecomputedScores is not exact.*stream_block = 0"):
            objective(scores=A @ B.T)
    features = random_features(N)
    for vectors in (PrecomputedScores(A @ B.T).query, PrecomputedScores(A @ B.T).keys):
        with pytest.raises(InputError, match="a score matrix has no query vectors"):
            vectors(features)


def test_precomputed_scores_are_the_scores_of_a_pair():
    features = random_features(N)
    assert torch.equal(Pair(features, features, torch.arange(N), PrecomputedScores(A @ B.T)).scores(), A @ B.T)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch.compile reads .grad
def test_a_compiled_loss_equals_the_loss():
    objectives = (InfoNCE(), InfoNCE(positives="supcon"), Sigmoid(), Triplet(negatives="hardest"))
    for objective in objectives:
        compiled, results = torch.compile(objective, backend="aot_eager"), []
        for loss in (objective, compiled):
            a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
            value = loss(a, b)
            results.append((value, *torch.autograd.grad(value, (a, b))))
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(*results, strict=True))


def test_modality_combinations_share_one_module():
    """One module for several pairs, as in a model with three encoders."""
    loss, sides = InfoNCE(), [random_tensor(N, DIM, seed=seed).requires_grad_() for seed in range(3)]
    total = sum((loss(x, y) for x, y in combinations(sides, 2)), torch.zeros(()))
    total.backward()
    assert all(side.grad is not None and torch.isfinite(side.grad).all() for side in sides)
