"""The `triptych encoders` command."""

from triptych.app.cli.options import AsJson


def encoders(as_json: AsJson = False) -> None:
    """List the available encoders: modality, output size, parameters, origin and licence.

    \b
    Examples:
      triptych encoders
      triptych encoders --json
    """
    from triptych.app import terminal
    from triptych.encoders import ENCODERS
    from triptych.encoders.catalogue import list_encoders

    terminal.print_results(list_encoders(ENCODERS), as_json, terminal.print_encoders)
