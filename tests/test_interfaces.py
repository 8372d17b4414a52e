"""Sources, features, pairs and batches: shapes, masks and devices."""

import pytest
import torch

from triptych.errors import InputError
from triptych.interfaces import Batch, Features, Pair, Source
from triptych.similarities.cosine import Cosine


def make_features(n=3, parts=2, modality=None):
    torch.manual_seed(n)
    return Features(torch.randn(n, 4), torch.randn(n, parts, 4), torch.ones(n, parts, dtype=torch.bool), modality)


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [(None, None, "a.wav"), (1.5, None, "a.wav [1.5–end s]"), (None, 2.0, "a.wav [0–2.0 s]"), (1, 2, "a.wav [1–2 s]")],
)
def test_a_source_prints_its_segment(start, end, text):
    assert str(Source("audio", "a.wav", start, end)) == text


def test_features_of_inconsistent_shapes_are_an_error():
    ones = torch.ones(3, 2, dtype=torch.bool)
    for embedding, parts, mask in (
        (torch.zeros(2, 4), torch.zeros(3, 2, 4), ones),
        (torch.zeros(3, 4), torch.zeros(3, 1, 4), ones),
        (torch.zeros(3), torch.zeros(3, 2, 4), ones),
    ):
        with pytest.raises(InputError, match=r"need \(N, D\), \(N, L, D\), \(N, L\)"):
            Features(embedding, parts, mask)
    with pytest.raises(InputError, match="mask: row 1 is all padding"):
        Features(torch.zeros(2, 4), torch.zeros(2, 1, 4), torch.tensor([[True], [False]]))


def test_take_and_to_keep_the_modality():
    features = make_features(modality="audio")
    rows = torch.tensor([2, 0])
    for selected in (features.take(rows), features.to(torch.device("cpu")).take(rows)):
        assert selected.modality == "audio"
        assert torch.equal(selected.embedding, features.embedding[rows])
        assert torch.equal(selected.parts, features.parts[rows])
    assert len(features.take(slice(1, 3)).mask) == 2


def test_mean_pool_ignores_padding():
    features = make_features()
    features.mask[1, 1] = False
    for i, pooled in enumerate(features.mean_pool()):
        assert torch.allclose(pooled, features.parts[i][features.mask[i]].mean(dim=0))


def test_positives_are_the_rows_of_the_same_group():
    a, b = make_features(), make_features()
    pair = Pair(a, b, torch.tensor([0, 1, 0]), Cosine())
    assert pair.positive_mask.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    assert torch.equal(pair.scores(), Cosine()(a, b))


@pytest.mark.parametrize(
    ("a", "b", "group", "message"),
    [
        (make_features(3), make_features(2), torch.arange(3), "a has 3 rows and b has 2"),
        (make_features(3), make_features(3), torch.arange(2), r"group is \(2,\) torch.int64; need \(3,\) integers"),
        (make_features(3), make_features(3), torch.arange(3.0), r"need \(3,\) integers"),
        (make_features(3).take(slice(0)), make_features(3).take(slice(0)), torch.arange(0), "at least 1"),
    ],
)
def test_inconsistent_pairs_are_an_error(a, b, group, message):
    with pytest.raises(InputError, match=message):
        Pair(a, b, group, Cosine())


def test_nan_embeddings_are_an_error():
    a, b = make_features(), make_features()
    b.embedding[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"b\.embedding contains NaN"):
        Pair(a, b, torch.arange(3), Cosine())


def test_a_batch_moves_to_a_device():
    batch = Batch({"text": torch.zeros(2, 3)}, {"text": torch.ones(2, 3) > 0}, torch.arange(2), row_ids=("a", "b"))
    moved = batch.to(torch.device("meta"))
    assert {moved.inputs["text"].device.type, moved.masks["text"].device.type, moved.group.device.type} == {"meta"}
    assert moved.row_ids == batch.row_ids
