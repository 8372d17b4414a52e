"""triptych demo"""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option("--into", help="Where to put everything.")] = Path("demo"),
    again: Annotated[bool, typer.Option("--again", help="Train anew even if the demo has run before.")] = False,
) -> None:
    """Make a small world, train a space on it, measure it and search it: everything once, in a few minutes."""
    from triptych.app.demo import run

    run(folder, again)
