"""The `triptych demo` command."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Output folder.")] = Path("demo"),
    restart: Annotated[bool, typer.Option("--restart", help="Train again even if the demo has run before.")] = False,
) -> None:
    """Generate synthetic data, train and evaluate a space, index files and search them. This takes a few minutes."""
    from triptych.app.demo import run_demo

    run_demo(output, restart)
