"""The arguments of train(): recipes with overrides, and run folders. test_loop_data.py tests the data."""

import doctest
from pathlib import Path

import pytest

from triptych.errors import RecipeError, UsageError
from triptych.recipe import Recipe
from triptych.training import arguments
from triptych.training.arguments import resolve_output, resolve_recipe


def test_doctests():
    outcome = doctest.testmod(arguments)
    assert outcome.attempted
    assert not outcome.failed


def test_a_name_a_file_and_a_recipe_are_equal(tmp_path):
    recipe = Recipe.load("trimodal", ["training.epochs=3"])
    (tmp_path / "mine.toml").write_text(Recipe.load("trimodal").to_toml())
    for source in ("trimodal", tmp_path / "mine.toml", str(tmp_path / "mine.toml"), Recipe.load("trimodal")):
        assert resolve_recipe(source, epochs=3) == recipe
    assert resolve_recipe(recipe) is recipe
    changed = resolve_recipe(recipe, ["space.embed_dim=64"], learning_rate=3e-5, seed=None)
    assert (changed.space.embed_dim, changed.training.learning_rate, changed.training.epochs) == (64, 3e-5, 3)


def test_invalid_settings_raise():
    with pytest.raises(RecipeError, match=r"training\.epochs = 0: must be"):
        resolve_recipe("trimodal", epochs=0)
    with pytest.raises(RecipeError, match=r"recipe trimodal with .*training\.batch_size = 2\.5: must be an integer"):
        resolve_recipe(Recipe.load("trimodal"), batch_size=2.5)
    with pytest.raises(RecipeError, match=r"recipe 'trimodel' is unknown; .* did you mean 'trimodal'"):
        resolve_recipe("trimodel")
    with pytest.raises(UsageError, match="recipe is dict; give the name of a recipe"):
        resolve_recipe({"name": "x"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"overrides is a string; give a list: \['space\.embed_dim=64'\]"):
        resolve_recipe("trimodal", "space.embed_dim=64")


def test_the_run_folder():
    recipe = Recipe.load("trimodal")
    assert resolve_output(None, recipe) == Path("runs/trimodal")
    assert resolve_output("runs/v1.0", recipe) == Path("runs/v1.0")
    for data in ("pairs.csv", Path("pairs.parquet"), [{"text": "a"}]):
        with pytest.raises(UsageError, match="must be the run folder; give the data as data=…"):
            resolve_output(data, recipe)  # pyright: ignore[reportArgumentType]
