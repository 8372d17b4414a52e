"""Scores of a fold: means over sets of captions against loops, and what is written is what is read."""

from dataclasses import asdict, fields

import numpy as np
import pytest
import torch

from triptych.auditing.folds import ModalityContents, ModalityPair
from triptych.auditing.scoring import (
    CaptionScores,
    ContentSets,
    FoldScores,
    RowScores,
    concat_scores,
    read_fold,
    write_fold,
)

BY_ROW = [[0, 1], [2], [0, 1], [1, 3, 2]]


def test_scores_of_a_set_are_the_mean_over_its_contents():
    sets = ContentSets(ModalityContents([], BY_ROW), range(4))
    scores = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    result = sets.mean_scores(scores)
    assert result.shape == (5, 3)  # rows 0 and 2 have the same set
    for row, contents in enumerate(BY_ROW):
        expected = [sum(float(query[c]) for c in contents) / len(contents) for query in scores]
        assert result[:, sets.set_of_row[row]].tolist() == pytest.approx(expected)


def make_fold(seed: int) -> FoldScores:
    rng = np.random.default_rng(seed)
    rows = RowScores(**{field.name: rng.random((3, 2))[:, 0] for field in fields(RowScores)})
    return FoldScores(rows, CaptionScores(**{field.name: rng.random(5) for field in fields(CaptionScores)}))


def test_a_fold_is_read_as_it_was_written(tmp_path):
    folds: dict[ModalityPair, FoldScores] = {("image", "text"): make_fold(0), ("audio", "text"): make_fold(1)}
    write_fold(tmp_path / "fold-0.safetensors", folds, ["broken.png: not an image"])
    result = read_fold(tmp_path / "fold-0.safetensors")
    assert result is not None
    scores, reasons = result
    assert reasons == ["broken.png: not an image"]
    for modality_pair, fold in folds.items():
        np.testing.assert_equal(asdict(scores[modality_pair]), asdict(fold))


def test_a_damaged_or_missing_fold_is_scored_again(tmp_path):
    file = tmp_path / "fold-0.safetensors"
    assert read_fold(file) is None
    write_fold(file, {("image", "text"): make_fold(0)}, [])
    file.write_bytes(file.read_bytes()[:100])
    assert read_fold(file) is None


def test_folds_are_concatenated_field_by_field():
    first, second = make_fold(0).rows, make_fold(1).rows
    both = concat_scores([first, second])
    assert both.fit_score.tolist() == [*first.fit_score.tolist(), *second.fit_score.tolist()]
