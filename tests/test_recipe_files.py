"""The files of recipes."""

import pytest

from triptych.errors import RecipeError
from triptych.recipe_files import find_recipe_file, list_bundled_recipes


def test_recipes_are_found_by_name_and_by_path(tmp_path):
    assert find_recipe_file("clap") == list_bundled_recipes()["clap"]
    (tmp_path / "mine.toml").touch()
    assert find_recipe_file(tmp_path / "mine.toml") == tmp_path / "mine.toml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clop", "recipe 'clop' is unknown; known: .*did you mean 'clap'"),
        ("none.toml", "recipe none.toml: no such file"),
        ("pairs.csv", "is a manifest, not a recipe"),
    ],
)
def test_missing_recipes_are_errors(name, message):
    with pytest.raises(RecipeError, match=message):
        find_recipe_file(name)
