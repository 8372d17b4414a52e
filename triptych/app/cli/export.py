"""The `triptych export` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson, Run, accepts_plugins


@accepts_plugins
def export(
    run: Run,
    onnx: Annotated[bool, typer.Option("--onnx", help="Export ONNX graphs, one per modality.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output folder. Default: RUN-onnx.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Manifest with example inputs. Default: the run's.", callback=checks.check_manifests),
    ] = None,
    as_json: AsJson = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Export each encoder with its projection to ONNX, verified and timed on real inputs.

    Each ONNX graph takes preprocessed inputs and their mask (N, L) and returns embeddings. The table shows the largest
    cosine distance (1 - cosine) to the embeddings of PyTorch, and the time per batch relative to PyTorch.

    \b
    Examples:
      triptych export runs/mine --onnx
      triptych export runs/mine --onnx -o graphs --data pairs.csv
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.errors import UsageError
    from triptych.export import default_folder, export_onnx, load_examples

    if not onnx:
        raise UsageError("no export format given; add --onnx, the only supported format")
    space, folder = load(run), output or default_folder(run)
    results = export_onnx(space, load_examples(space, data, allow_outside), folder, show_progress=not as_json)
    terminal.print_results(results, as_json, terminal.print_export)
    if not as_json:
        terminal.stdout.print(f"exported: {folder}")
