"""Text and audio align through images."""

import pytest

from tests.studies.conftest import NAMES, make_experiment
from triptych.errors import UsageError
from triptych.studies import transitivity
from triptych.studies.experiment import Experiment


@pytest.mark.slow
def test_text_and_audio_align_through_images(experiment, monkeypatch):
    monkeypatch.setattr(transitivity, "EPOCHS", 150)
    table = transitivity.make_disjoint_pairs(experiment.splits["train"], 0.5)
    assert not ((table.vector_counts["text"] > 0) & (table.vector_counts["audio"] > 0)).any()
    assert int((table.vector_counts["image"] > 0).sum()) == len(table) // 2
    recipe = transitivity.make_recipe(experiment, "ranking", 1.0)
    table = transitivity.make_disjoint_pairs(experiment.splits["train"], 1.0)
    recalls = transitivity.measure(experiment, table, transitivity.compute_teacher_targets(experiment), recipe)
    assert recalls[transitivity.UNTRAINED_KEY] > 80 > 2 * recalls["chance"] - 10


def test_transitivity_needs_three_modalities():
    experiment = make_experiment()
    bimodal = Experiment(experiment.encoders, {m: n for m, n in NAMES.items() if m != "audio"}, experiment.splits)
    with pytest.raises(UsageError, match="needs rows with image, audio and text"):
        transitivity.run(bimodal, None)  # pyright: ignore[reportArgumentType]
