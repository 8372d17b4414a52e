"""triptych demo"""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to put everything.")] = Path("demo"),
    restart: Annotated[bool, typer.Option("--restart", help="Train anew even if the demo has run before.")] = False,
) -> None:
    """Make a small world, train a space on it, measure it and search it: everything once, in a few minutes."""
    from triptych.app.demo import run_demo

    run_demo(output, restart)
