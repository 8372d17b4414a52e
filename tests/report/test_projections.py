"""Projections and match matrices against naive computations."""

import math

import numpy as np
import pytest

from triptych.report.projections import compute_match_matrices, project_pca, select_shared_groups

pytestmark = pytest.mark.slow


def test_match_matrices_are_softmax_and_plan_of_the_same_items(report):
    items, space = report.evaluation.items, report.space
    for matrices in compute_match_matrices(space, items, {frozenset(("image", "text")): 0.5}, size=6):
        indices = select_shared_groups(items, 6)
        a, b = (items[m].take(indices[m]) for m in (matrices.a, matrices.b))
        scores = space.scores(a, b).tolist()
        for i, row in enumerate(scores):
            weights = [math.exp(s / matrices.temperature) for s in row]
            assert matrices.softmax[i] == pytest.approx([x / sum(weights) for x in weights], rel=1e-4)
        assert matrices.plan.sum(0) == pytest.approx(np.ones(6), abs=1e-5)
        assert matrices.plan.sum(1) == pytest.approx(np.ones(6), abs=1e-5)
        if {matrices.a, matrices.b} == {"image", "text"}:
            assert matrices.temperature == 0.5


def test_the_same_groups_are_selected_in_every_modality(report):
    items = report.evaluation.items
    groups = {m: items[m].group_ids[indices].tolist() for m, indices in select_shared_groups(items, 9).items()}
    assert len(groups["image"]) == 9
    assert groups["image"] == groups["audio"] == groups["text"]


def test_pca_projection_has_the_largest_variances(report):
    projection = project_pca(report.evaluation.items)
    rows = []
    for modality, indices in select_shared_groups(report.evaluation.items, 150).items():
        x = report.evaluation.items[modality].features.embedding[indices].double().numpy()
        rows.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    x = np.concatenate(rows)
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert projection.coordinates.var(axis=0) == pytest.approx(values[::-1][:2])
