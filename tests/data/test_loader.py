"""The loader: batches, their order, captions, and unreadable files."""

import pytest
import torch

from triptych.data.loader import Loader, collate, source_of, sources_of
from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError, UsageError
from triptych.interfaces import Encoder, Source

PAIRS = [("image", "audio"), ("image", "text"), ("audio", "text")]


class Numbers(Encoder):
    """Prepares a source as the number in its name; 13 is unreadable."""

    feature_dim = 1

    def __init__(self, modality):
        super().__init__()
        self.modality = modality

    def prepare(self, source: Source):
        number = int(str(source.content).split(".")[0])
        if number == 13:
            raise MediaError("13: bad luck")
        return torch.full((number % 3 + 1,), number)

    def forward(self, inputs, mask):
        return inputs, mask


def make_row(number, *, audio=True, image=True, texts=("0",), group=None):
    from pathlib import Path

    path = Path(f"{number}.x")
    return Row(
        id=str(number),
        audio=path if audio else None,
        image=path if image else None,
        video=None,
        texts=tuple(texts),
        group=group or str(number),
        split=None,
        label=None,
        start=None,
        end=None,
        number=number,
    )


def make_loader(rows, pairs=PAIRS, batch_size=4, seed=0, **settings):
    return Loader(rows, {m: Numbers(m) for m in ("image", "audio", "text")}, pairs, batch_size, seed, **settings)


def numbers(batch, modality):
    return [int(values[0]) for values in batch.inputs[modality]]


def test_rows_stay_together_and_every_row_comes_at_most_once():
    batches = list(make_loader([make_row(i) for i in range(1, 11)]).iter_epoch(0))
    assert [len(batch.group) for batch in batches] == [4, 4]
    seen = [n for batch in batches for n in numbers(batch, "image")]
    assert len(set(seen)) == 8
    for batch in batches:
        assert numbers(batch, "image") == numbers(batch, "audio")


def test_order_depends_only_on_the_seed():
    rows = [make_row(i) for i in range(1, 21)]

    def order(seed, epoch, **settings):
        return [numbers(batch, "image") for batch in make_loader(rows, seed=seed, **settings).iter_epoch(epoch)]

    assert order(0, 3) == order(0, 3, workers=1, memory_mb=0)
    assert order(0, 3) != order(0, 4)
    assert order(0, 3) != order(1, 3)


def test_captions_change_from_epoch_to_epoch():
    rows = [make_row(i, texts=("100", "101", "102")) for i in range(1, 9)]
    seen = {n for epoch in range(6) for batch in make_loader(rows).iter_epoch(epoch) for n in numbers(batch, "text")}
    assert seen == {100, 101, 102}


def test_rows_of_a_group_share_a_group_index():
    rows = [make_row(1, group="x"), make_row(2, group="x"), make_row(4), make_row(5)]
    (batch,) = make_loader(rows).iter_epoch(0)
    by_row = dict(zip(numbers(batch, "image"), batch.group.tolist(), strict=True))
    assert by_row[1] == by_row[2]
    assert len({by_row[1], by_row[4], by_row[5]}) == 3


def test_each_batch_has_one_modality_set_with_a_trained_pair():
    rows = (
        [make_row(i) for i in range(1, 5)]
        + [make_row(i, image=False) for i in range(21, 25)]
        + [make_row(40, texts=())] * 4
    )
    modality_sets = [tuple(batch.inputs) for batch in make_loader(rows).iter_epoch(0)]
    assert sorted(modality_sets) == [("audio", "text"), ("image", "audio"), ("image", "audio", "text")]
    loader = make_loader(rows, pairs=[("image", "text"), ("audio", "text")])
    assert ("image", "audio") not in loader.modality_sets
    assert loader.steps_per_epoch == 2


def test_unreadable_rows_are_skipped_and_recorded():
    loader = make_loader([make_row(i) for i in (1, 2, 13, 4)])
    (batch,) = loader.iter_epoch(0)
    assert sorted(numbers(batch, "image")) == [1, 2, 4]
    assert {str(source.content) for source in loader.failures} == {"13.x"}
    assert list(make_loader([make_row(1), make_row(13)]).iter_epoch(0)) == []


def test_no_pairs_to_train_on_is_an_error():
    with pytest.raises(TrainingError, match=r"\(rows: 3\): .* a trained pair \(audio–text\)"):
        make_loader([make_row(i, audio=False) for i in range(3)], pairs=[("audio", "text")])
    with pytest.raises(TrainingError, match=r"\(rows: 1\)"):
        make_loader([make_row(1)])


def test_sources_of_a_row():
    row = make_row(1, audio=False, texts=("5", "6"))
    assert [source.content for source in sources_of(row, "text")] == ["5", "6"]
    assert source_of(row, "text", 3).content == "6"
    with pytest.raises(UsageError, match="row 1 has no audio; it has image, text"):
        source_of(row, "audio")


def test_collate_pads_with_zeros():
    padded, mask = collate([torch.tensor([1, 2]), torch.tensor([3])])
    assert padded.tolist() == [[1, 2], [3, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
