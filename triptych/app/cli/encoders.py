"""The `triptych encoders` command."""

from dataclasses import asdict

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

    encoder_infos = list_encoders(ENCODERS)
    if as_json:
        terminal.print_json([asdict(info) for info in encoder_infos])
    else:
        terminal.print_encoders(encoder_infos)
