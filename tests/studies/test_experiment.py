"""Feature tables, fits and recall of an experiment over frozen features."""

import numpy as np
import pytest
import torch

from tests.studies.conftest import CAPTIONS, make_experiment, make_table
from triptych.data.label_noise import Swap
from triptych.settings import Component
from triptych.studies.experiment import configure_objective


def test_sample_vectors_takes_vectors_of_the_row(experiment):
    table = experiment.splits["train"]
    rows = torch.tensor([5, 2, 5])
    drawn = table.sample_vectors("text", rows, np.array([0, 7, 4]))
    expected = [table.vectors["text"][5 * CAPTIONS + 0], table.vectors["text"][2 * CAPTIONS + 1]]
    torch.testing.assert_close(drawn[:2], torch.stack(expected))
    torch.testing.assert_close(drawn[2], table.vectors["text"][5 * CAPTIONS + 1])


def test_apply_swaps_returns_a_new_table():
    table = make_table(4, 0)
    swapped = table.apply_swaps([Swap("0-0", "text", "0-3"), Swap("0-3", "text", "0-0")])
    assert swapped.vector_indices["text"][0].tolist() == table.vector_indices["text"][3].tolist()
    assert swapped.vector_indices["text"][3].tolist() == table.vector_indices["text"][0].tolist()
    assert swapped.vector_indices["text"][1].tolist() == table.vector_indices["text"][1].tolist()
    assert swapped.vector_indices["image"].tolist() == table.vector_indices["image"].tolist()
    assert table.vector_indices["text"][0].tolist() == [0, 1, 2]


def test_expand_captions_keeps_image_and_group():
    table = make_table(3, 0)
    expanded = table.expand_captions()
    assert len(expanded) == 3 * CAPTIONS
    assert expanded.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert expanded.vector_indices["text"][:, 0].tolist() == list(range(9))
    assert expanded.vector_indices["image"][:, 0].tolist() == expanded.group.tolist()


def test_collect_items_has_each_vector_once_per_group():
    table = make_table(3, 0)
    swapped = table.apply_swaps([Swap("0-1", "image", "0-0")])
    vectors, group = swapped.collect_items("image")
    assert sorted(zip(vectors[:, 0, 0].tolist(), group.tolist(), strict=True)) == sorted(
        zip(table.vectors["image"][[0, 0, 2], 0, 0].tolist(), [0, 1, 2], strict=True)
    )


@pytest.mark.slow
def test_fit_learns_and_is_deterministic(experiment):
    recipe = experiment.make_recipe(configure_objective("infonce"), batch_size=32, epochs=20)
    first, again = experiment.fit(recipe), experiment.fit(recipe)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    ranks = experiment.evaluate(first)
    assert ranks.recall("text", "image", 1) > 60  # chance is 4
    untrained = experiment.evaluate(
        experiment.fit(
            experiment.make_recipe(configure_objective("infonce"), batch_size=32, epochs=1, learning_rate=1e-12)
        )
    )
    assert untrained.recall("text", "image", 1) < 30


def test_recall_matches_a_naive_loop(experiment):
    space = experiment.fit(experiment.make_recipe(configure_objective("infonce"), batch_size=32, epochs=2))
    (image, a), (text, b) = (experiment.embed_split(space, "test", m) for m in ("image", "text"))
    hits = 0
    for i in range(len(b)):
        scores = [float(text.embedding[i].double() @ image.embedding[j].double()) for j in range(len(a))]
        best_positive = max(s for s, group in zip(scores, a.tolist(), strict=True) if group == int(b[i]))
        hits += sum(s >= best_positive for s, group in zip(scores, a.tolist(), strict=True) if group != int(b[i])) < 10
    ranks = experiment.evaluate(space)
    assert ranks.recall("text", "image", 10) == pytest.approx(100 * hits / len(b), abs=1e-6)
    assert np.mean(ranks.hit_rates("text", "image")) == pytest.approx(hits / len(b))


def test_rows_without_a_modality_train_the_other_pairs():
    experiment = make_experiment()
    table = experiment.splits["train"]
    even = torch.arange(len(table)) % 2 == 0
    epoch_means = []
    recipe = experiment.make_recipe(
        configure_objective("infonce", ("image", "text"), ("image", "audio")), batch_size=16, epochs=1
    )
    experiment.fit(
        recipe, table.keep_modalities({"text": even, "audio": ~even}), on_epoch_end=lambda *a: epoch_means.append(a[1])
    )
    assert {name.split(".")[0] for name in epoch_means[0]} == {
        "infonce(image,text)",
        "infonce(image,audio)",
        "loss",
        "steps",
    }


def test_recipes_write_out_default_settings(experiment):
    text = experiment.make_recipe(
        configure_objective("matching"), space={"similarity": Component("mahalanobis", {"embed_dim": 256})}
    ).to_toml()
    for setting in ("epsilon", "mass", "metric", "rank"):
        assert f"\n{setting} = " in text
