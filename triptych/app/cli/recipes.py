"""triptych recipes"""

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one whole, every default written out.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
) -> None:
    """List the recipes that come with triptych, or show one.

    \b
    Examples:
      triptych recipes
      triptych recipes trimodal --set training.epochs=5
    """
    from triptych.app.show import out
    from triptych.recipe import Recipe, shipped

    if name:
        out.print(Recipe.load(name, change or []).text(), end="")
        return
    for known in shipped():
        out.print(f"{known:<12} {Recipe.load(known).about}")
