"""Ranks by a plan over the whole test set: those of a plan made by plain iterations, streamed or not, for any space."""

from typing import Any

import pytest
import torch

from triptych.checkpoint import load
from triptych.contracts import Features, Modality, Source
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.evaluation import transduction
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.items import Item, Items
from triptych.evaluation.transduction import prices, transduce
from triptych.similarities import SIMILARITIES
from triptych.transport import sinkhorn_iterations

SPACES = [("cosine", {}), ("dot", {}), ("mahalanobis", {"width": 8}), ("matchmap", {})]


class Plain:
    """As much of a space as transduction asks for."""

    def __init__(self, name, **settings):
        self.similarity = SIMILARITIES[name](**settings)

    def scores(self, query, query_is, gallery, gallery_is):
        return self.similarity(query, gallery)


def plain(name, **settings) -> Any:
    return Plain(name, **settings)


def made(modality, embedding, group, parts=1):
    lines = embedding[:, None] + 0.1 * torch.arange(parts)[:, None]
    features = Features(embedding, lines, torch.ones(len(embedding), parts, dtype=torch.bool))
    each = [Item(Source(modality, f"{i}"), str(int(g)), "", None) for i, g in enumerate(group)]
    return Items(modality, each, features, group)


def two_sides(clips=24, captions=3, width=8, noise=1.0, seed=0, parts=1) -> dict[Modality, Items]:
    rng = torch.Generator().manual_seed(seed)
    sound = torch.randn(clips, width, generator=rng)
    owner = torch.arange(clips).repeat_interleave(captions)
    words = sound[owner] + noise * torch.randn(len(owner), width, generator=rng)
    return {"audio": made("audio", sound, torch.arange(clips), parts), "text": made("text", words, owner, parts)}


def ranks_by_loops(plan, query_group, gallery_group):
    """The rank of each query's best right answer in its row of the plan."""
    found = []
    for i, row in enumerate(plan.tolist()):
        best = max(p for p, g in zip(row, gallery_group.tolist(), strict=True) if g == query_group[i])
        found.append(
            1 + sum(p >= best for p, g in zip(row, gallery_group.tolist(), strict=True) if g != query_group[i])
        )
    return found


@pytest.mark.parametrize(
    ("name", "settings"), [("cosine", {}), ("dot", {}), ("mahalanobis", {"width": 8}), ("matchmap", {})]
)
def test_ranks_are_those_of_the_plan_for_any_similarity(name, settings):
    items = two_sides(parts=3)
    space = plain(name, **settings)
    a, b = items["audio"], items["text"]
    table = space.similarity(a.features, b.features).detach().double()
    epsilon = 0.03 * (table.max() - table.min()).item()
    plan = sinkhorn_iterations(-table, epsilon, count=4000)
    results = {(d.query, d.gallery): d for d in transduce(space, items, draws=0, show=False)}
    assert results["audio", "text"].each.rank.tolist() == ranks_by_loops(plan, a.group, b.group)
    assert results["text", "audio"].each.rank.tolist() == ranks_by_loops(plan.T, b.group, a.group)
    assert {d.mode for d in results.values()} == {"transductive"}


def test_tiles_give_what_the_whole_gives(monkeypatch):
    items = two_sides()
    space = plain("cosine")
    whole = transduce(space, items, draws=0, show=False)
    monkeypatch.setattr(transduction, "WHOLE", 0)
    monkeypatch.setattr(transduction, "BLOCK", 7)
    tiled = transduce(space, items, draws=0, show=False)
    assert whole == tiled
    for one, other in zip(whole, tiled, strict=True):
        assert one.each.rank.tolist() == other.each.rank.tolist()


def test_too_large_a_set_is_refused(monkeypatch):
    items = two_sides(parts=3)
    monkeypatch.setattr(transduction, "WHOLE", 100)
    with pytest.raises(UsageError, match=r"audio–text: 24 × 72 scores are too many .* at most 100 .* smaller split"):
        transduce(plain("matchmap"), items, show=False)


def test_an_item_that_everybody_asks_for_is_shared_out():
    """One hub above all: each query alone finds it first; all together know that it cannot be everybody's."""
    scores = torch.eye(12)
    scores[:, 0] = 1.5
    own = torch.arange(12)
    a, b = made("audio", scores, own), made("text", torch.eye(12), own)
    space = plain("dot")
    found = transduce(space, {"audio": a, "text": b}, draws=0, show=False)
    assert {d.query: d.recall[1] for d in found} == {"audio": 1.0, "text": 1.0}


def test_guesses_stay_guesses_and_a_collapsed_space_scores_nothing():
    rng = torch.Generator().manual_seed(1)
    own = torch.arange(200)
    items: dict[Modality, Items] = {m: made(m, torch.randn(200, 16, generator=rng), own) for m in ("audio", "text")}
    space = plain("cosine")
    for d in transduce(space, items, draws=0, show=False):
        assert d.recall[10] == pytest.approx(d.chance[10], abs=0.06)
    alike: dict[Modality, Items] = {m: made(m, torch.ones(20, 4), torch.arange(20)) for m in ("audio", "text")}
    assert prices(space, alike["audio"], alike["text"], lambda r, c: torch.ones(len(r), len(c))).epsilon == 0
    for d in transduce(space, alike, draws=0, show=False):
        assert d.recall[10] == 0


def test_it_stands_beside_the_inductive_score_never_in_its_place(run, world):
    rows = manifest.read(world).rows[:20]
    space = load(run)
    plain, both = evaluate(space, rows, show=False), evaluate(space, rows, show=False, transductive=True)
    assert plain.transductive == []
    assert both.directions == plain.directions
    assert [(d.query, d.gallery) for d in both.transductive] == [(d.query, d.gallery) for d in both.directions]
    assert {d.mode for d in both.directions} == {"inductive"}
    assert {d.mode for d in both.transductive} == {"transductive"}
