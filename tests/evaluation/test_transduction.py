"""Transductive ranks against those of a plan from plain Sinkhorn iterations, dense or tiled, for any similarity."""

from typing import Any

import pytest
import torch

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.evaluation import transduction
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.items import EvalItem, EvalItems
from triptych.evaluation.transduction import measure_transductive, solve_potentials
from triptych.interfaces import Features, Modality, Source
from triptych.similarities import SIMILARITIES
from triptych.transport import sinkhorn_plan

SPACES = [("cosine", {}), ("dot", {}), ("mahalanobis", {"embed_dim": 8}), ("matchmap", {})]


class SimilarityOnlySpace:
    """The part of a space that transduction uses."""

    def __init__(self, name, **settings):
        self.similarity = SIMILARITIES[name](**settings)

    def scores(self, query, gallery):
        return self.similarity(query, gallery)


def make_space(name, **settings) -> Any:
    return SimilarityOnlySpace(name, **settings)


def make_items(modality, embedding, group, parts=1):
    part_features = embedding[:, None] + 0.1 * torch.arange(parts)[:, None]
    features = Features(embedding, part_features, torch.ones(len(embedding), parts, dtype=torch.bool))
    entries = [EvalItem(Source(modality, f"{i}"), str(int(g)), "", None) for i, g in enumerate(group)]
    return EvalItems(modality, entries, features, group)


def make_task(clips=24, captions=3, embed_dim=8, noise=1.0, seed=0, parts=1) -> dict[Modality, EvalItems]:
    rng = torch.Generator().manual_seed(seed)
    audio = torch.randn(clips, embed_dim, generator=rng)
    owner = torch.arange(clips).repeat_interleave(captions)
    caption_embeddings = audio[owner] + noise * torch.randn(len(owner), embed_dim, generator=rng)
    return {
        "audio": make_items("audio", audio, torch.arange(clips), parts),
        "text": make_items("text", caption_embeddings, owner, parts),
    }


def ranks_by_loops(plan, query_group, gallery_group):
    """The rank of each query's best positive in its row of the plan."""
    ranks = []
    for i, row in enumerate(plan.tolist()):
        best = max(p for p, g in zip(row, gallery_group.tolist(), strict=True) if g == query_group[i])
        ranks.append(
            1 + sum(p >= best for p, g in zip(row, gallery_group.tolist(), strict=True) if g != query_group[i])
        )
    return ranks


@pytest.mark.parametrize(("name", "settings"), SPACES)
def test_ranks_match_the_plan_for_any_similarity(name, settings):
    items = make_task(parts=3)
    space = make_space(name, **settings)
    a, b = items["audio"], items["text"]
    table = space.similarity(a.features, b.features).detach().double()
    epsilon = 0.03 * (table.max() - table.min()).item()
    plan = sinkhorn_plan(-table, epsilon, count=4000)
    results = {
        (d.query, d.gallery): d for d in measure_transductive(space, items, num_resamples=0, show_progress=False)
    }
    assert results["audio", "text"].per_query.best_rank.tolist() == ranks_by_loops(plan, a.group_ids, b.group_ids)
    assert results["text", "audio"].per_query.best_rank.tolist() == ranks_by_loops(plan.T, b.group_ids, a.group_ids)
    assert {d.mode for d in results.values()} == {"transductive"}


def test_tiled_and_dense_scores_agree(monkeypatch):
    items = make_task()
    space = make_space("cosine")
    dense = measure_transductive(space, items, num_resamples=0, show_progress=False)
    monkeypatch.setattr(transduction, "MAX_DENSE_SCORES", 0)
    monkeypatch.setattr(transduction, "DEFAULT_BLOCK_SIZE", 7)
    tiled = measure_transductive(space, items, num_resamples=0, show_progress=False)
    assert dense == tiled
    for one, other in zip(dense, tiled, strict=True):
        assert one.per_query.best_rank.tolist() == other.per_query.best_rank.tolist()


def test_too_many_scores_raise(monkeypatch):
    items = make_task(parts=3)
    monkeypatch.setattr(transduction, "MAX_DENSE_SCORES", 100)
    with pytest.raises(UsageError, match=r"audio–text: 24 × 72 scores are too many .* limit is 100 .* smaller split"):
        measure_transductive(make_space("matchmap"), items, show_progress=False)


def test_a_hub_is_not_ranked_first_for_every_query():
    """Inductively every query ranks the hub first; a plan cannot assign it to all of them."""
    scores = torch.eye(12)
    scores[:, 0] = 1.5
    groups = torch.arange(12)
    a, b = make_items("audio", scores, groups), make_items("text", torch.eye(12), groups)
    space = make_space("dot")
    results = measure_transductive(space, {"audio": a, "text": b}, num_resamples=0, show_progress=False)
    assert {d.query: d.recall[1] for d in results} == {"audio": 1.0, "text": 1.0}


def test_random_scores_stay_at_chance_and_a_collapsed_space_scores_zero():
    rng = torch.Generator().manual_seed(1)
    groups = torch.arange(200)
    items: dict[Modality, EvalItems] = {
        m: make_items(m, torch.randn(200, 16, generator=rng), groups) for m in ("audio", "text")
    }
    space = make_space("cosine")
    for d in measure_transductive(space, items, num_resamples=0, show_progress=False):
        assert d.recall[10] == pytest.approx(d.chance_recall[10], abs=0.06)
    collapsed: dict[Modality, EvalItems] = {
        m: make_items(m, torch.ones(20, 4), torch.arange(20)) for m in ("audio", "text")
    }
    assert (
        solve_potentials(space, collapsed["audio"], collapsed["text"], lambda r, c: torch.ones(len(r), len(c))).epsilon
        == 0
    )
    for d in measure_transductive(space, collapsed, num_resamples=0, show_progress=False):
        assert d.recall[10] == 0


def test_transductive_results_do_not_replace_inductive_ones(run_dir, synthetic_manifest):
    rows = manifest.read(synthetic_manifest).rows[:20]
    space = load(run_dir)
    inductive, both = (
        evaluate(space, rows, show_progress=False),
        evaluate(space, rows, show_progress=False, transductive=True),
    )
    assert inductive.transductive == []
    assert both.directions == inductive.directions
    assert [(d.query, d.gallery) for d in both.transductive] == [(d.query, d.gallery) for d in both.directions]
    assert {d.mode for d in both.directions} == {"inductive"}
    assert {d.mode for d in both.transductive} == {"transductive"}
