"""The `triptych recipes` command."""

from typing import Annotated

import typer

from triptych.app.cli.options import Overrides, accepts_plugins


@accepts_plugins
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe as TOML, with all defaults.")] = None,
    overrides: Overrides = None,
) -> None:
    """List the bundled recipes and the installed plug-ins, or print one recipe.

    \b
    Examples:
      triptych recipes
      triptych recipes trimodal --set training.epochs=5
    """
    from triptych.app.terminal import print_plugins, stdout
    from triptych.plugins import list_plugins
    from triptych.recipe import Recipe
    from triptych.recipe_files import list_bundled_recipes

    if name:
        stdout.print(Recipe.load(name, overrides or []).to_toml(), end="")
        return
    for recipe_name in list_bundled_recipes():
        stdout.print(f"{recipe_name:<12} {Recipe.load(recipe_name).description}")
    print_plugins(list_plugins())
