"""Reasons: they add up to the score, whatever the space; each formula against loops in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import QUICK
from triptych.checkpoint import load
from triptych.contracts import Features, Source
from triptych.data import manifest
from triptych.recipe import Recipe
from triptych.search.explain import explain, matchmap_shares, shares_of_pool, unfolded, word_region_shares
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion
from triptych.space import Space

KINDS = {
    "cosine": [],
    "dot": ["space.similarity={name='dot'}", "space.geometry='free'"],
    "metric": ["space.similarity={name='mahalanobis', width=32, metric='diagonal'}"],
    "squared": ["space.similarity={name='mahalanobis', width=32, form='squared'}"],
    "misa": ["space.similarity={name='matchmap', kind='misa'}"],
    "sima": ["space.similarity={name='matchmap', kind='sima'}"],
    "sisa": ["space.similarity={name='matchmap', kind='sisa'}"],
    "words": ["space.similarity={name='word_region'}"],
    "deep": ["space.head='mlp'", "space.hidden=48", "space.pooling='mean_max'", "space.shared=40"],
}
WITHOUT_REST = {"cosine", "dot", "misa", "sima", "sisa", "words"}


@pytest.fixture(scope="module")
def rows(world):
    return manifest.read(world).rows


@pytest.fixture(scope="module", params=KINDS)
def space(request, rows, world):
    """An untrained space of each kind: reasons must add up in any."""
    torch.manual_seed(0)
    made = Space(Recipe.load("trimodal", [*QUICK, f"data.manifest={world}", *KINDS[request.param]]))
    made.encoder("text").learn(Source("text", words) for row in rows for words in row.texts)
    made.eval().kind = request.param
    return made


def sources(row):
    return {
        "image": Source("image", row.image),
        "audio": Source("audio", row.audio),
        "text": Source("text", row.texts[0]),
    }


@pytest.mark.parametrize(
    "pair", [("text", "image"), ("image", "text"), ("audio", "image"), ("text", "audio"), ("image", "image")]
)
def test_contributions_add_up_to_the_score(space, rows, pair):
    query, hit = sources(rows[0])[pair[0]], sources(rows[1])[pair[1]]
    told = explain(space, query, hit)
    with torch.inference_mode():
        score = float(space.scores(space.embed_one(query), query.modality, space.embed_one(hit), hit.modality))
    assert told.score == pytest.approx(score, abs=1e-5)
    assert float(told.contributions.sum()) + told.rest == pytest.approx(score, abs=1e-5)
    if space.kind in WITHOUT_REST:
        assert told.rest == pytest.approx(0, abs=1e-4 * max(1, abs(score)))
    assert told.contributions.shape == told.heat.shape == (len(told.query.places), len(told.hit.places))


def test_words_are_whole_and_places_are_of_their_kind(space, rows):
    found = sources(rows[2])
    told = explain(space, found["text"], found["image"])
    words = [str(told.query.text)[int(start) : int(end)] for start, end in told.query.places]
    assert words == str(found["text"].content).split()
    assert all(len(place) == 4 and min(place) >= 0 and max(place) <= 1 for place in told.hit.places)
    told = explain(space, found["image"], found["audio"])
    assert told.hit.span is not None
    assert all(len(place) == 2 and place[0] < place[1] for place in told.hit.places)


def test_a_cosine_is_a_sum_over_pairs_of_parts(run, rows):
    """By loops: the score is Σ_pq <h(x_p), h(y_q)> / (P·Q·|mean h(x)|·|mean h(y)|)."""
    space = load(run)
    found = sources(rows[3])
    told = explain(space, found["audio"], found["image"])
    a, b = (space.embed_one(found[m]).parts[0].double() for m in ("audio", "image"))
    scale = len(a) * len(b) * float(a.mean(0).norm() * b.mean(0).norm())
    for p in range(len(a)):
        for q in range(0, len(b), 7):
            expected = sum(float(x * y) for x, y in zip(a[p], b[q], strict=True)) / scale
            assert float(told.contributions[p, q]) == pytest.approx(expected, abs=1e-6)


def test_a_shown_score_that_differs_by_rounding_leaves_the_difference_in_the_rest(run, rows):
    space, found = load(run), sources(rows[4])
    told = explain(space, found["text"], found["image"])
    shown = explain(space, found["text"], found["image"], told.score + 0.01)
    assert shown.rest == pytest.approx(told.rest + 0.01, abs=1e-6)


def test_a_deep_head_is_taken_apart_along_the_way(world, rows):
    """What the parts add differs from the whole by what the head gives for nothing, and by the integral's error."""
    torch.manual_seed(1)
    space = Space(Recipe.load("trimodal", [*QUICK, f"data.manifest={world}", *KINDS["deep"]])).eval()
    with torch.inference_mode():
        found = torch.randn(1, 9, 32)
        parts = unfolded(space, "image", found)
        assert torch.allclose(parts.parts[0].mean(dim=0), parts.embedding[0], atol=1e-6)
        nothing = space.shared(space.heads["image"](torch.zeros(64)))
        whole = space.shared(space.heads["image"](shares_of_pool(found[0], wide=True).sum(dim=0)))
        last = parts.parts[0, -1] * float(whole.norm()) / parts.parts.shape[1]
        assert torch.allclose(last, nothing, atol=2e-3 * float(whole.norm()))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_matchmap_shares_are_the_winners(regions, frames, seed):
    heat = torch.randn(regions, frames, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = {
        "misa": sum(max(float(heat[r, t]) for r in range(regions)) for t in range(frames)) / frames,
        "sima": sum(max(float(heat[r, t]) for t in range(frames)) for r in range(regions)) / regions,
        "sisa": sum(float(heat[r, t]) for r in range(regions) for t in range(frames)) / (regions * frames),
    }
    for kind, score in expected.items():
        shares = matchmap_shares(heat, kind)
        assert float(shares.sum()) == pytest.approx(score, abs=1e-9)
        if kind == "misa":
            assert int((shares != 0).sum()) <= frames
    parts = [
        Features(torch.zeros(1, 3), torch.randn(1, n, 3), torch.ones(1, n, dtype=torch.bool)) for n in (regions, frames)
    ]
    similarity = Matchmap("misa")
    assert float(matchmap_shares(similarity.heat(*parts)[0], "misa").sum()) == pytest.approx(
        float(similarity(*parts)), abs=1e-5
    )


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_word_region_shares_are_each_words_weight_in_the_sum(regions, words, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        Features(torch.zeros(1, 4), torch.randn(1, n, 4, generator=generator), torch.ones(1, n, dtype=torch.bool))
        for n in (regions, words)
    )
    similarity = WordRegion()
    shares, attention = word_region_shares(similarity, a, b), similarity.attention_maps(a, b)[0]
    score = float(similarity(a, b))
    assert float(shares.sum()) == pytest.approx(score, abs=1e-4 * max(1, abs(score)))
    cosines = []
    for t in range(words):
        context = torch.stack([float(attention[t, r]) * a.parts[0, r].double() for r in range(regions)]).sum(dim=0)
        word = b.parts[0, t].double()
        cosines.append(float(context @ word) / max(float(context.norm() * word.norm()), 1e-8))
    total = sum(math.exp(similarity.sharpness * cosine) for cosine in cosines)
    for t, cosine in enumerate(cosines):
        weight = math.exp(similarity.sharpness * cosine) / total
        assert float(shares[:, t].sum()) == pytest.approx(weight * score, abs=1e-4 * max(1, abs(score)))
