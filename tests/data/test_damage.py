"""A damaged manifest differs from the right one exactly where its answer key says."""

from collections import Counter

import pytest
import torch

from tests.data.manifest_files import save
from tests.data.source_copies import WAV, picture, put
from triptych.contracts import Encoder
from triptych.data import manifest
from triptych.data.damage import damage, swaps_of
from triptych.data.noise import read_swaps
from triptych.errors import UsageError

KINDS = ("cat", "dog", "owl")


class FirstWord(Encoder):
    """Texts are alike when they begin alike."""

    modality, kind, width, frozen = "text", "word", 3, True

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(1))  # where its weights are, its work is done

    def prepare(self, source):
        return torch.eye(3)[[next(i for i, kind in enumerate(KINDS) if str(source.content).startswith(kind))]]

    def forward(self, inputs, mask):
        return inputs, mask


@pytest.fixture
def right(tmp_path):
    """150 rows: pictures and sounds with two captions; in pairs of one group, some about a moment."""
    rows = []
    for i in range(150):
        put(tmp_path / f"{i}.png", picture(i % 250))
        put(tmp_path / f"{i}.wav", WAV)
        texts = [f"{KINDS[i % 3]} {i}", f"{KINDS[i % 3]} again {i}"]
        split = "test" if i < 30 else "train"
        row = {"id": f"r{i}", "image": f"{i}.png", "audio": f"{i}.wav", "text": texts, "split": split, "start": i / 8}
        rows.append({**row, "group": f"g{i // 6}-{i % 3}", "label": KINDS[i % 3]})
    return save(tmp_path / "right.jsonl", rows)


def told(path):
    return {row.id: row for row in manifest.read(path).rows}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["random", "category", "similar"])
def test_captions_move_with_their_label_and_group_as_the_key_says(kind, ending, right, tmp_path):
    made, _ = damage(right, tmp_path / f"wrong.{ending}", 0.4, kind, encoder=FirstWord(), show=False)
    before, after = told(right), told(made.path)
    donors = {swap.id: swap.taken_from for swap in read_swaps(swaps_of(made.path))}
    assert Counter(before[name].split for name in donors) == {"train": 48, "test": 12}
    for name, row in after.items():
        own, other = before[name], before[donors.get(name, name)]
        assert (row.texts, row.label, row.group) == (other.texts, other.label, other.group)
        assert (row.image, row.audio, row.start, row.split) == (own.image, own.audio, own.start, own.split)
        assert other.split == own.split
        assert name not in donors or other.group != own.group
        assert kind == "random" or other.label == own.label  # captions begin with the label
    assert before.keys() == after.keys()
    told_of = {"manifest": "right.jsonl", "share": 0.4, "kind": kind, "modality": "text", "seed": 0}
    assert made.summary["options"] == told_of | ({"size": 50} if kind == "similar" else {})


def test_sounds_move_with_their_moment_and_nothing_else(right, tmp_path):
    made, _ = damage(right, tmp_path / "wrong.csv", 0.5, modality="audio", split="train", seed=3, show=False)
    before, after = told(right), told(made.path)
    donors = {swap.id: swap.taken_from for swap in read_swaps(swaps_of(made.path))}
    assert len(donors) == 60
    for name, row in after.items():
        own, other = before[name], before[donors.get(name, name)]
        assert (row.audio, row.start) == (other.audio, other.start)
        assert (row.image, row.texts, row.group, row.label) == (own.image, own.texts, own.group, own.label)


def test_the_rows_that_would_be_wrong_can_be_left_out(right, tmp_path):
    wrong, _ = damage(right, tmp_path / "wrong.csv", 0.4, seed=2, show=False)
    left, _ = damage(right, tmp_path / "left.csv", 0.4, seed=2, drop=True, show=False)
    key = read_swaps(swaps_of(left.path))
    assert key == read_swaps(swaps_of(wrong.path))
    assert told(left.path).keys() == told(right).keys() - {swap.id for swap in key}
    for name, row in told(left.path).items():
        own = told(right)[name]
        assert (row.texts, row.image, row.audio, row.group) == (own.texts, own.image, own.audio, own.group)


def test_what_cannot_be_damaged_is_refused(right, tmp_path):
    (tmp_path / "right.source.json").write_text("{}")
    with pytest.raises(UsageError, match="is the manifest to be read"):
        damage(right, right, 0.1, show=False)
    with pytest.raises(UsageError, match="did you mean 'image'"):
        damage(right, tmp_path / "x.csv", 0.1, modality="imge", show=False)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="needs an encoder of texts"):
        damage(right, tmp_path / "x.csv", 0.1, "similar", show=False)
    bare = save(tmp_path / "bare.jsonl", [{"image": f"{i}.png", "audio": f"{i}.wav"} for i in range(9)])
    with pytest.raises(UsageError, match="0 rows have text beside something else"):
        damage(bare, tmp_path / "x.csv", 0.1, show=False)
    with pytest.raises(UsageError, match="row 1 has no label"):
        damage(bare, tmp_path / "x.csv", 0.1, "category", "image", show=False)
    with pytest.raises(UsageError, match="row 1 has no caption"):
        damage(bare, tmp_path / "x.csv", 0.1, "similar", "image", show=False)
