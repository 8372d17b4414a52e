"""Each form of relevance gives the same judgements; invalid ones raise InputError."""

import numpy as np
import pytest
import torch

from triptych.errors import InputError
from triptych.evaluation.judgements import make_judgements, to_matrix

IDS = {"query_ids": ["q", "r"], "gallery_ids": [1, 2, 3]}
GRADES = [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("relevance", "options"),
    [
        (None, {"query_groups": ["x", "y"], "gallery_groups": np.array(["x", "y", "x"])}),
        (GRADES, {}),
        (torch.tensor(GRADES, dtype=torch.bool), {}),
        (np.array(GRADES, bool)[::-1][::-1], {}),
        ({"q": {1, 3}, "r": {2: 1, 3: 0}}, IDS),
        ({"q": ["1", "3"], "r": ["2"], "unknown": ["2"]}, IDS),
    ],
)
def test_all_forms_of_relevance_agree(relevance, options):
    judgements = make_judgements((2, 3), relevance, **options)
    assert judgements.grades(slice(0, 9)).tolist() == GRADES
    assert judgements.grades(slice(1, 2)).tolist() == GRADES[1:]
    assert judgements.num_ignored_queries == int(isinstance(relevance, dict) and "unknown" in relevance)


@pytest.mark.parametrize(
    ("relevance", "options", "message"),
    [
        (None, {}, r"scores have shape \(2, 3\).*must be square"),
        (None, {"query_groups": [1, 2]}, "pass both or neither"),
        (None, {"query_groups": [1, 2], "gallery_groups": [1, 2]}, "gallery_groups: 2 labels; the scores need 3"),
        (None, {"query_groups": [[1], [2]], "gallery_groups": [1, 2, 3]}, "query_groups: .* several dimensions"),
        (GRADES, {"query_groups": [1, 2], "gallery_groups": [1, 2, 3]}, "pass only one"),
        (GRADES, IDS, "used with qrels only"),
        (GRADES, {"clusters": [1]}, "clusters: 1 labels; the scores need 2"),
        ([[1, 0]], {}, r"relevance has shape \(1, 2\), scores have shape \(2, 3\)"),
        ([[0, 0, -1], [0, 0, 0]], {}, "relevance: row 0, column 2: grade -1; need a finite number from 0"),
        ([[0, 0, np.nan], [0, 0, 0]], {}, "1 values are NaN; the first is in row 0, column 2"),
        ({"q": {1}}, {}, "qrels need query_ids and gallery_ids"),
        ({"q": {1: -2}}, IDS, "query 'q', document '1': grade -2; need a finite number from 0"),
        ({"q": "1"}, IDS, "need a set or a dict"),
        ({"q": {1: None}}, IDS, "need a number for each document"),
        ({"x": {1}}, IDS, "no query of the qrels is in query_ids"),
        ({"q": {"a"}}, IDS, "no document of the qrels is in gallery_ids"),
        ({"q": {1}}, {"query_ids": ["q", "q"], "gallery_ids": [1, 2, 3]}, "query_ids: 'q' occurs twice"),
    ],
)
def test_invalid_relevance_raises(relevance, options, message):
    with pytest.raises(InputError, match=message):
        make_judgements((2, 3), relevance, **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"shape is \(0,\)"),
        (np.zeros((0, 3)), r"shape is \(0, 3\)"),
        (np.zeros(3), r"shape is \(3,\)"),
        ([[1, 2], [3]], "different lengths"),
        ([["a"]], "need numbers"),
        (torch.tensor([[0.0, torch.nan]]), "row 0, column 1"),
    ],
)
def test_invalid_matrices_raise(values, message):
    with pytest.raises(InputError, match=message):
        to_matrix("scores", values)


def test_read_only_and_half_precision_matrices_are_accepted():
    array = np.eye(2, dtype=np.float16)
    array.flags.writeable = False
    assert to_matrix("scores", array).dtype == torch.float64
    assert to_matrix("scores", torch.eye(2, requires_grad=True)).dtype == torch.float32
