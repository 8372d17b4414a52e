"""A noisy manifest differs from the clean one exactly in the swapped rows."""

from collections import Counter

import pytest
import torch

from tests.data.dataset_replicas import WAV, png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.data import manifest
from triptych.data.label_noise import read_swaps
from triptych.data.noise_injection import inject_noise, swaps_path
from triptych.errors import UsageError
from triptych.interfaces import Encoder

ANIMALS = ("cat", "dog", "owl")


class FirstWord(Encoder):
    """An encoder whose features depend on the first word only."""

    modality, part_name, feature_dim, frozen = "text", "word", 3, True

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))  # gives the encoder a device

    def prepare(self, source):
        return torch.eye(3)[[next(i for i, animal in enumerate(ANIMALS) if str(source.content).startswith(animal))]]

    def forward(self, inputs, mask):
        return inputs, mask


@pytest.fixture
def clean(tmp_path):
    """A manifest of 150 rows with image, audio segment and two captions, in groups of two."""
    rows = []
    for i in range(150):
        write_file(tmp_path / f"{i}.png", png_bytes(i % 250))
        write_file(tmp_path / f"{i}.wav", WAV)
        texts = [f"{ANIMALS[i % 3]} {i}", f"{ANIMALS[i % 3]} again {i}"]
        split = "test" if i < 30 else "train"
        row = {"id": f"r{i}", "image": f"{i}.png", "audio": f"{i}.wav", "text": texts, "split": split, "start": i / 8}
        rows.append({**row, "group": f"g{i // 6}-{i % 3}", "label": ANIMALS[i % 3]})
    return write_manifest(tmp_path / "clean.jsonl", rows)


def read_rows(path):
    return {row.id: row for row in manifest.read(path).rows}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("noise_kind", ["random", "category", "similar"])
def test_captions_move_with_label_and_group_as_listed(noise_kind, ending, clean, tmp_path):
    written, _ = inject_noise(
        clean, tmp_path / f"noisy.{ending}", 0.4, noise_kind, encoder=FirstWord(), show_progress=False
    )
    before, after = read_rows(clean), read_rows(written.path)
    donors = {swap.id: swap.taken_from for swap in read_swaps(swaps_path(written.path))}
    assert Counter(before[name].split for name in donors) == {"train": 48, "test": 12}
    for name, row in after.items():
        row_before, donor = before[name], before[donors.get(name, name)]
        assert (row.texts, row.label, row.group) == (donor.texts, donor.label, donor.group)
        assert (row.image, row.audio, row.start, row.split) == (
            row_before.image,
            row_before.audio,
            row_before.start,
            row_before.split,
        )
        assert donor.split == row_before.split
        assert name not in donors or donor.group != row_before.group
        assert noise_kind == "random" or donor.label == row_before.label  # captions begin with the label
    assert before.keys() == after.keys()
    options = {"manifest": "clean.jsonl", "noise_rate": 0.4, "noise_kind": noise_kind, "modality": "text", "seed": 0}
    assert written.summary["options"] == options | ({"cluster_size": 50} if noise_kind == "similar" else {})


def test_audio_moves_with_its_segment_and_nothing_else(clean, tmp_path):
    written, _ = inject_noise(
        clean, tmp_path / "noisy.csv", 0.5, modality="audio", split="train", seed=3, show_progress=False
    )
    before, after = read_rows(clean), read_rows(written.path)
    donors = {swap.id: swap.taken_from for swap in read_swaps(swaps_path(written.path))}
    assert len(donors) == 60
    for name, row in after.items():
        row_before, donor = before[name], before[donors.get(name, name)]
        assert (row.audio, row.start) == (donor.audio, donor.start)
        assert (row.image, row.texts, row.group, row.label) == (
            row_before.image,
            row_before.texts,
            row_before.group,
            row_before.label,
        )


def test_drop_removes_the_rows_that_would_be_swapped(clean, tmp_path):
    noisy, _ = inject_noise(clean, tmp_path / "noisy.csv", 0.4, seed=2, show_progress=False)
    reduced, _ = inject_noise(clean, tmp_path / "reduced.csv", 0.4, seed=2, drop=True, show_progress=False)
    swaps = read_swaps(swaps_path(reduced.path))
    assert swaps == read_swaps(swaps_path(noisy.path))
    assert read_rows(reduced.path).keys() == read_rows(clean).keys() - {swap.id for swap in swaps}
    for name, row in read_rows(reduced.path).items():
        row_before = read_rows(clean)[name]
        assert (row.texts, row.image, row.audio, row.group) == (
            row_before.texts,
            row_before.image,
            row_before.audio,
            row_before.group,
        )


def test_invalid_noise_injection_raises(clean, tmp_path):
    (tmp_path / "clean.source.json").write_text("{}")
    with pytest.raises(UsageError, match="is the manifest to be read"):
        inject_noise(clean, clean, 0.1, show_progress=False)
    with pytest.raises(UsageError, match="did you mean 'image'"):
        inject_noise(clean, tmp_path / "x.csv", 0.1, modality="imge", show_progress=False)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="needs a text encoder"):
        inject_noise(clean, tmp_path / "x.csv", 0.1, "similar", show_progress=False)
    bare = write_manifest(tmp_path / "bare.jsonl", [{"image": f"{i}.png", "audio": f"{i}.wav"} for i in range(9)])
    with pytest.raises(UsageError, match="0 rows have text and another modality"):
        inject_noise(bare, tmp_path / "x.csv", 0.1, show_progress=False)
    with pytest.raises(UsageError, match="row 1 has no label"):
        inject_noise(bare, tmp_path / "x.csv", 0.1, "category", "image", show_progress=False)
    with pytest.raises(UsageError, match="row 1 has no caption"):
        inject_noise(bare, tmp_path / "x.csv", 0.1, "similar", "image", show_progress=False)
