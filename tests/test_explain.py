"""Explanations: contributions add up to the score in every space; each formula against loops in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TINY_OVERRIDES
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.explain import (
    decompose_embedding,
    explain,
    matchmap_contributions,
    pooling_contributions,
    word_region_contributions,
)
from triptych.interfaces import Features, Source
from triptych.recipe import Recipe
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.space import Space

SPACES = {
    "cosine": [],
    "dot": ["space.similarity={name='dot'}", "space.geometry='free'"],
    "metric": ["space.similarity={name='mahalanobis', embed_dim=32, metric='diagonal'}"],
    "squared": ["space.similarity={name='mahalanobis', embed_dim=32, form='squared'}"],
    "misa": ["space.similarity={name='matchmap', reduction='misa'}"],
    "sima": ["space.similarity={name='matchmap', reduction='sima'}"],
    "sisa": ["space.similarity={name='matchmap', reduction='sisa'}"],
    "words": ["space.similarity={name='word_region'}"],
    "deep": ["space.head={name='mlp', hidden_dim=48}", "space.pooling='mean_max'", "space.shared_hidden_dim=40"],
}
WITHOUT_RESIDUAL = {"cosine", "dot", "misa", "sima", "sisa", "words"}


@pytest.fixture(scope="module")
def rows(synthetic_manifest):
    return manifest.read(synthetic_manifest).rows


@pytest.fixture(scope="module", params=SPACES)
def space(request, rows, synthetic_manifest):
    """An untrained space of each type."""
    torch.manual_seed(0)
    space = Space(
        Recipe.load("trimodal", [*TINY_OVERRIDES, f"data.manifest={synthetic_manifest}", *SPACES[request.param]])
    )
    space.encoder("text").fit_vocabulary(Source("text", words) for row in rows for words in row.texts)
    space.eval().variant = request.param
    return space


def sources_of_row(row):
    return {
        "image": Source("image", row.image),
        "audio": Source("audio", row.audio),
        "text": Source("text", row.texts[0]),
    }


@pytest.mark.parametrize(
    "pair", [("text", "image"), ("image", "text"), ("audio", "image"), ("text", "audio"), ("image", "image")]
)
def test_contributions_add_up_to_the_score(space, rows, pair):
    query, hit = sources_of_row(rows[0])[pair[0]], sources_of_row(rows[1])[pair[1]]
    explanation = explain(space, query, hit)
    with torch.inference_mode():
        score = float(space.scores(space.embed_one(query), space.embed_one(hit)))
    assert explanation.score == pytest.approx(score, abs=1e-5)
    assert float(explanation.contributions.sum()) + explanation.residual == pytest.approx(score, abs=1e-5)
    if space.variant in WITHOUT_RESIDUAL:
        assert explanation.residual == pytest.approx(0, abs=1e-4 * max(1, abs(score)))
    assert (
        explanation.contributions.shape
        == explanation.attribution.shape
        == (len(explanation.query.part_locations), len(explanation.hit.part_locations))
    )


def test_tokens_are_merged_into_words_and_locations_fit_the_modality(space, rows):
    sources = sources_of_row(rows[2])
    explanation = explain(space, sources["text"], sources["image"])
    words = [str(explanation.query.text)[int(start) : int(end)] for start, end in explanation.query.part_locations]
    assert words == str(sources["text"].content).split()
    assert all(len(region) == 4 and min(region) >= 0 and max(region) <= 1 for region in explanation.hit.part_locations)
    explanation = explain(space, sources["image"], sources["audio"])
    assert explanation.hit.span is not None
    assert all(len(region) == 2 and region[0] < region[1] for region in explanation.hit.part_locations)


def test_a_cosine_is_a_sum_over_pairs_of_parts(run_dir, rows):
    """With loops: the score is Σ_pq <h(x_p), h(y_q)> / (P·Q·|mean h(x)|·|mean h(y)|)."""
    space = load(run_dir)
    sources = sources_of_row(rows[3])
    explanation = explain(space, sources["audio"], sources["image"])
    a, b = (space.embed_one(sources[m]).parts[0].double() for m in ("audio", "image"))
    scale = len(a) * len(b) * float(a.mean(0).norm() * b.mean(0).norm())
    for p in range(len(a)):
        for q in range(0, len(b), 7):
            expected = sum(float(x * y) for x, y in zip(a[p], b[q], strict=True)) / scale
            assert float(explanation.contributions[p, q]) == pytest.approx(expected, abs=1e-6)


def test_a_rounded_score_puts_the_difference_into_the_residual(run_dir, rows):
    space, sources = load(run_dir), sources_of_row(rows[4])
    exact = explain(space, sources["text"], sources["image"])
    rounded = explain(space, sources["text"], sources["image"], exact.score + 0.01)
    assert rounded.residual == pytest.approx(exact.residual + 0.01, abs=1e-6)


def test_an_mlp_head_is_decomposed_by_integrated_gradients(synthetic_manifest, rows):
    """The last part is the output of the head for a zero input, up to the error of the integration."""
    torch.manual_seed(1)
    space = Space(
        Recipe.load("trimodal", [*TINY_OVERRIDES, f"data.manifest={synthetic_manifest}", *SPACES["deep"]])
    ).eval()
    with torch.inference_mode():
        parts = torch.randn(1, 9, 32)
        decomposed = decompose_embedding(space, "image", parts)
        assert torch.allclose(decomposed.parts[0].mean(dim=0), decomposed.embedding[0], atol=1e-6)
        bias_output = space.shared_head(space.heads["image"](torch.zeros(64)))
        output = space.shared_head(space.heads["image"](pooling_contributions(parts[0], has_max=True).sum(dim=0)))
        last = decomposed.parts[0, -1] * float(output.norm()) / decomposed.parts.shape[1]
        assert torch.allclose(last, bias_output, atol=2e-3 * float(output.norm()))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_matchmap_contributions_are_those_of_the_maxima(regions, frames, seed):
    attribution = torch.randn(regions, frames, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = {
        "misa": sum(max(float(attribution[r, t]) for r in range(regions)) for t in range(frames)) / frames,
        "sima": sum(max(float(attribution[r, t]) for t in range(frames)) for r in range(regions)) / regions,
        "sisa": sum(float(attribution[r, t]) for r in range(regions) for t in range(frames)) / (regions * frames),
    }
    for aggregation, score in expected.items():
        contributions = matchmap_contributions(attribution, aggregation)
        assert float(contributions.sum()) == pytest.approx(score, abs=1e-9)
        if aggregation == "misa":
            assert int((contributions != 0).sum()) <= frames
    parts = [
        Features(torch.zeros(1, 3), torch.randn(1, n, 3), torch.ones(1, n, dtype=torch.bool)) for n in (regions, frames)
    ]
    similarity = Matchmap("misa")
    assert float(matchmap_contributions(similarity.attribution(*parts)[0], "misa").sum()) == pytest.approx(
        float(similarity(*parts)), abs=1e-5
    )


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_word_region_contributions_are_the_softmax_weights_of_the_words(regions, words, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        Features(torch.zeros(1, 4), torch.randn(1, n, 4, generator=generator), torch.ones(1, n, dtype=torch.bool))
        for n in (regions, words)
    )
    similarity = WordRegion()
    contributions, attention = word_region_contributions(similarity, a, b), similarity.attention_maps(a, b)[0]
    score = float(similarity(a, b))
    assert float(contributions.sum()) == pytest.approx(score, abs=1e-4 * max(1, abs(score)))
    cosines = []
    for t in range(words):
        context = torch.stack([float(attention[t, r]) * a.parts[0, r].double() for r in range(regions)]).sum(dim=0)
        word = b.parts[0, t].double()
        cosines.append(float(context @ word) / max(float(context.norm() * word.norm()), 1e-8))
    total = sum(math.exp(similarity.sharpness * cosine) for cosine in cosines)
    for t, cosine in enumerate(cosines):
        weight = math.exp(similarity.sharpness * cosine) / total
        assert float(contributions[:, t].sum()) == pytest.approx(weight * score, abs=1e-4 * max(1, abs(score)))
