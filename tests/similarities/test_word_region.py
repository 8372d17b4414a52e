"""Word-region attention against naive loops, with padding, zero vectors and blocks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import triptych.similarities.word_region as module
from tests.similarities.test_matchmap import lengths, ragged_features
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features
from triptych.similarities.word_region import WordRegion


def softmax(values):
    top = max(values)
    raised = [math.exp(v - top) for v in values]
    return [r / sum(raised) for r in raised]


def dot(x, y):
    return sum(p * q for p, q in zip(x, y, strict=True))


def naive_maps(regions, words, attention_scale):
    """α as lists, one row for each word."""
    word_probs = [softmax([dot(word, region) for word in words]) for region in regions]  # for each region over words
    return [softmax([attention_scale * word_probs[r][t] for r in range(len(regions))]) for t in range(len(words))]


def naive_score(regions, words, attention_scale, sharpness):
    total = 0.0
    for word, weights in zip(words, naive_maps(regions, words, attention_scale), strict=True):
        context = [sum(w * region[k] for w, region in zip(weights, regions, strict=True)) for k in range(len(word))]
        norm_product = math.sqrt(dot(context, context)) * math.sqrt(dot(word, word))
        total += math.exp(sharpness * dot(context, word) / max(norm_product, 1e-8))
    return math.log(total)


def naive_scores(a, b, attention_scale, sharpness):
    return torch.tensor(
        [
            [
                naive_score(x[m].tolist(), y[n].tolist(), attention_scale, sharpness)
                for y, n in zip(b.parts, b.mask, strict=True)
            ]
            for x, m in zip(a.parts, a.mask, strict=True)
        ],
        dtype=torch.float64,
    )


def with_parts(features, parts):
    return Features(features.embedding, parts, features.mask)


@pytest.fixture(params=[(1, 1), (2, 30), (16, 2**19)], ids=["single", "small", "usual"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(module, "CAPTIONS_PER_BLOCK", request.param[0])
    monkeypatch.setattr(module, "MAX_BLOCK_ENTRIES", request.param[1])


@given(lengths, lengths, st.floats(0.1, 20), st.floats(0.1, 20), st.integers(0, 99))
def test_matches_naive_loop(regions, words, attention_scale, sharpness, seed):
    a, b = ragged_features(regions, seed=seed, longest=6), ragged_features(words, seed=seed + 100, longest=7)
    expected = naive_scores(a, b, attention_scale, sharpness)
    assert torch.allclose(WordRegion(attention_scale, sharpness)(a, b), expected, atol=1e-9)
    assert torch.allclose(
        WordRegion(attention_scale, sharpness, divide_by_sharpness=True)(a, b), expected / sharpness, atol=1e-9
    )


@pytest.mark.usefixtures("blocks")
def test_block_size_changes_neither_scores_nor_gradients():
    a, b = ragged_features([2, 1, 3], dim=3, seed=1), ragged_features([2, 3, 1, 4], dim=3, seed=2)
    assert torch.allclose(WordRegion()(a, b), naive_scores(a, b, 4.0, 5.0), atol=1e-10)
    assert torch.autograd.gradcheck(
        lambda x, y: WordRegion()(with_parts(a, x), with_parts(b, y)),
        (a.parts.masked_fill(~a.mask[:, :, None], 0).requires_grad_(), b.parts.clone().requires_grad_()),
    )


@given(lengths, lengths, st.integers(1, 200), st.integers(1, 4))
def test_memory_is_bounded_by_the_block_size(regions, words, max_entries, captions):
    """Blocks cover every pair of image and caption once, and exceed the limit only for a single image."""
    a, b, covered = ragged_features(regions), ragged_features(words), torch.zeros(len(regions), len(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CAPTIONS_PER_BLOCK", captions)
        patch.setattr(module, "MAX_BLOCK_ENTRIES", max_entries)
        for i, j, longest in module._iter_blocks(a.parts, b.mask):
            covered[i, j] += 1
            images = len(a.parts[i])
            assert longest == max(words[j])
            assert images == 1 or images * len(words[j]) * longest * max(regions) <= max_entries
    assert (covered == 1).all()


def test_masks_may_have_holes():
    """Real parts count at any position of the mask."""
    a, b = ragged_features([3, 2], seed=1), ragged_features([5, 5], seed=2)
    mask = torch.tensor([[False, True, False, True, False], [True, False, False, False, True]])
    scores = WordRegion()(a, Features(b.embedding, b.parts, mask))
    packed = torch.stack([b.parts[i][mask[i]] for i in range(2)])
    expected = WordRegion()(a, Features(b.embedding, packed, torch.ones(2, 2, dtype=torch.bool)))
    assert torch.allclose(scores, expected, atol=1e-12)


def test_padding_is_ignored_and_gets_no_gradient():
    a, b = ragged_features([3, 2], seed=1), ragged_features([2, 4], seed=2)
    for filler in (1e6, math.nan, math.inf):
        x, y = (f.parts.masked_fill(~f.mask[:, :, None], filler).requires_grad_() for f in (a, b))
        scores = WordRegion()(with_parts(a, x), with_parts(b, y))
        assert torch.allclose(scores, naive_scores(a, b, 4.0, 5.0), atol=1e-10)
        for gradient, f in zip(torch.autograd.grad(scores.sum(), (x, y)), (a, b), strict=True):
            assert torch.isfinite(gradient).all()
            assert (gradient[~f.mask] == 0).all()
            assert (gradient[f.mask] != 0).any()


@given(st.integers(0, 99))
def test_invariant_to_order_of_items_regions_and_words(seed):
    a, b = ragged_features([3, 3, 3], seed=seed), ragged_features([4, 4, 4], seed=seed + 100)
    items, regions, words = torch.randperm(3), torch.randperm(3), torch.randperm(4)
    scores = WordRegion()(
        Features(a.embedding, a.parts[items][:, regions], a.mask),
        Features(b.embedding, b.parts[items][:, words], b.mask),
    )
    assert torch.allclose(scores, WordRegion()(a, b)[items][:, items])


def test_zero_norm_words_are_neutral():
    """cos = 0 / 1e-8 there; the slope is that of <c, e> / 1e-8."""
    a, b = ragged_features([3, 2], seed=1), ragged_features([2, 2], seed=2)
    b.parts[0, 1] = 0
    expected = naive_scores(a, b, 4.0, 5.0)
    assert torch.allclose(WordRegion()(a, b), expected, atol=1e-10)
    tiny = with_parts(b, b.parts * 1e-10)  # every product of norms is below 1e-8

    def score(x, y):
        return WordRegion()(with_parts(a, x), with_parts(b, y * 1e-10))

    assert torch.allclose(WordRegion()(a, tiny), naive_scores(a, tiny, 4.0, 5.0), atol=1e-10)
    inputs = (a.parts.masked_fill(~a.mask[:, :, None], 0).requires_grad_(), b.parts.clone().requires_grad_())
    assert torch.autograd.gradcheck(score, inputs)


def test_one_word_and_one_region_equal_cosine():
    a, b = ragged_features([1], seed=1), ragged_features([1], seed=2)
    cosine = torch.cosine_similarity(a.parts[:, 0], b.parts[:, 0])
    assert torch.allclose(WordRegion()(a, b), 5 * cosine[:, None])
    assert torch.allclose(WordRegion(divide_by_sharpness=True)(a, b), cosine[:, None])


def test_true_pairs_rank_first():
    """Captions whose words equal regions of their own image."""
    a = ragged_features([6] * 8, dim=32)
    b = Features(a.parts[:, 0], a.parts[:, :4], a.mask[:, :4])
    scores = WordRegion()(a, b)
    assert torch.equal(scores.argmax(dim=1), torch.arange(8))
    assert torch.equal(scores.argmax(dim=0), torch.arange(8))


def test_attention_maps_match_naive_loop():
    a, b = ragged_features([3, 2, 5], seed=1), ragged_features([2, 4, 1], seed=2)
    maps = WordRegion(attention_scale=9.0).attention_maps(a, b)
    assert maps.shape == (3, 4, 5)
    for i in range(3):
        regions, words = a.parts[i][a.mask[i]], b.parts[i][b.mask[i]]
        expected = torch.zeros(4, 5, dtype=torch.float64)
        expected[: len(words), : len(regions)] = torch.tensor(naive_maps(regions.tolist(), words.tolist(), 9.0))
        assert torch.allclose(maps[i], expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1e8])
def test_large_and_small_parts_stay_finite(scale):
    a, b = ragged_features([3, 2], seed=1), ragged_features([2, 4], seed=2)
    x, y = (f.parts.masked_fill(~f.mask[:, :, None], 0).float().requires_grad_() for f in (a, b))
    large = [with_parts(f, p * scale) for f, p in ((a, x), (b, y))]
    scores = WordRegion(attention_scale=100.0)(large[0], large[1])
    float64_features = [with_parts(f, f.parts * scale) for f in (a, b)]
    assert torch.allclose(
        scores.double(), naive_scores(float64_features[0], float64_features[1], 100.0, 5.0), atol=1e-3
    )
    assert all(torch.isfinite(slope).all() for slope in torch.autograd.grad(scores.sum(), (x, y)))


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_close(autocast):
    a, b = ragged_features([5, 3], dim=16, seed=1), ragged_features([4, 6], dim=16, seed=2)
    parts = [f.parts.to(torch.float32 if autocast else torch.bfloat16).requires_grad_() for f in (a, b)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        scores = WordRegion()(with_parts(a, parts[0]), with_parts(b, parts[1]))
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double(), WordRegion()(a, b), atol=1e-4 if autocast else 0.1)
    gradients = torch.autograd.grad(scores.sum(), parts)
    assert all(torch.isfinite(s).all() and s.dtype == p.dtype for s, p in zip(gradients, parts, strict=True))


def test_shortlist_is_cosine_of_embeddings():
    a, b, similarity = ragged_features([3, 2], seed=1), ragged_features([2, 4, 1], seed=2), WordRegion()
    expected = torch.cosine_similarity(a.embedding[:, None], b.embedding, dim=2)
    assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, expected)
    assert not similarity.is_exact


def test_invalid_inputs_raise():
    with pytest.raises(RecipeError, match=r"attention_scale = 0"):
        WordRegion(attention_scale=0)
    with pytest.raises(RecipeError, match=r"sharpness = nan"):
        WordRegion(sharpness=math.nan)
    with pytest.raises(InputError, match=r"a.parts have 4 dimensions and b.parts 5"):
        WordRegion()(ragged_features([2]), ragged_features([2], dim=5))
    for bad in (math.nan, math.inf):
        a = ragged_features([2, 3])
        a.parts[1, 0] = bad
        with pytest.raises(InputError, match="NaN or infinity in a part"):
            WordRegion()(a, ragged_features([2, 1], seed=1))


def test_attribution_reproduces_score():
    a, b = random_features(2, parts=4, seed=1), random_features(2, parts=5, seed=2)
    attention = WordRegion(attention_scale=4.0, sharpness=5.0)
    assert torch.allclose((5.0 * attention.attribution(a, b).sum(dim=1)).logsumexp(dim=1), attention(a, b).diagonal())
