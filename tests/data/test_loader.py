"""The loader: which rows make batches, in which order, with which captions, and what happens to bad files."""

import pytest
import torch

from triptych.contracts import Encoder, Source
from triptych.data.loader import Loader, collate, source_of, sources_of
from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError, UsageError

PAIRS = [("image", "audio"), ("image", "text"), ("audio", "text")]


class Numbers(Encoder):
    """Prepares a source to the number it is named after; 13 cannot be read."""

    width = 1

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


def row(number, *, audio=True, image=True, texts=("0",), group=None):
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


def loader(rows, pairs=PAIRS, batch=4, seed=0, **settings):
    return Loader(rows, {m: Numbers(m) for m in ("image", "audio", "text")}, pairs, batch, seed, **settings)


def numbers(batch, modality):
    return [int(values[0]) for values in batch.inputs[modality]]


def test_rows_stay_together_and_every_row_comes_at_most_once():
    found = list(loader([row(i) for i in range(1, 11)]).epoch(0))
    assert [len(batch.group) for batch in found] == [4, 4]
    seen = [n for batch in found for n in numbers(batch, "image")]
    assert len(set(seen)) == 8
    for batch in found:
        assert numbers(batch, "image") == numbers(batch, "audio")


def test_the_order_is_the_seeds_alone():
    rows = [row(i) for i in range(1, 21)]

    def order(seed, epoch, **settings):
        return [numbers(batch, "image") for batch in loader(rows, seed=seed, **settings).epoch(epoch)]

    assert order(0, 3) == order(0, 3, workers=1, memory_mb=0)
    assert order(0, 3) != order(0, 4)
    assert order(0, 3) != order(1, 3)


def test_captions_change_from_epoch_to_epoch():
    rows = [row(i, texts=("100", "101", "102")) for i in range(1, 9)]
    seen = {n for epoch in range(6) for batch in loader(rows).epoch(epoch) for n in numbers(batch, "text")}
    assert seen == {100, 101, 102}


def test_rows_of_one_group_share_their_number():
    rows = [row(1, group="x"), row(2, group="x"), row(4), row(5)]
    (batch,) = loader(rows).epoch(0)
    by_row = dict(zip(numbers(batch, "image"), batch.group.tolist(), strict=True))
    assert by_row[1] == by_row[2]
    assert len({by_row[1], by_row[4], by_row[5]}) == 3


def test_each_batch_has_one_kind_of_row_and_only_trained_pairs_count():
    rows = [row(i) for i in range(1, 5)] + [row(i, image=False) for i in range(21, 25)] + [row(40, texts=())] * 4
    kinds = [tuple(batch.inputs) for batch in loader(rows).epoch(0)]
    assert sorted(kinds) == [("audio", "text"), ("image", "audio"), ("image", "audio", "text")]
    without = loader(rows, pairs=[("image", "text"), ("audio", "text")])
    assert ("image", "audio") not in without.kinds
    assert without.steps == 2


def test_unreadable_rows_are_left_out_and_noted():
    some = loader([row(i) for i in (1, 2, 13, 4)])
    (batch,) = some.epoch(0)
    assert sorted(numbers(batch, "image")) == [1, 2, 4]
    assert {str(source.content) for source in some.failures} == {"13.x"}
    assert list(loader([row(1), row(13)]).epoch(0)) == []


def test_nothing_to_pair_is_an_error_that_says_so():
    with pytest.raises(TrainingError, match=r"of 3 rows no two of a kind give a pair to learn from \(audio–text\)"):
        loader([row(i, audio=False) for i in range(3)], pairs=[("audio", "text")])
    with pytest.raises(TrainingError, match="of 1 rows"):
        loader([row(1)])


def test_sources_of_a_row():
    mine = row(1, audio=False, texts=("5", "6"))
    assert [source.content for source in sources_of(mine, "text")] == ["5", "6"]
    assert source_of(mine, "text", 3).content == "6"
    with pytest.raises(UsageError, match="row 1 has no audio; it has image, text"):
        source_of(mine, "audio")


def test_collate_pads_with_nothing():
    padded, mask = collate([torch.tensor([1, 2]), torch.tensor([3])])
    assert padded.tolist() == [[1, 2], [3, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
