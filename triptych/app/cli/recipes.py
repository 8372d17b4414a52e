"""triptych recipes"""

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one whole, every default written out.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
) -> None:
    """List the recipes that come with triptych, or show one.

    \b
    Examples:
      triptych recipes
      triptych recipes trimodal --set training.epochs=5
    """
    from triptych.app.terminal import stdout
    from triptych.recipe import Recipe, list_bundled_recipes

    if name:
        stdout.print(Recipe.load(name, overrides or []).to_toml(), end="")
        return
    for recipe_name in list_bundled_recipes():
        stdout.print(f"{recipe_name:<12} {Recipe.load(recipe_name).description}")
