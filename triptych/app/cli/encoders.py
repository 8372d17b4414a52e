"""The `triptych encoders` command."""

from dataclasses import asdict

from triptych.app.cli.options import AsJson


def encoders(as_json: AsJson = False) -> None:
    """List the available encoders, also those of plug-ins: modality, output size, parameters, origin and licence.

    \b
    Examples:
      triptych encoders
      triptych encoders --json
    """
    from triptych.app import terminal
    from triptych.encoders import ENCODERS
    from triptych.encoders.catalogue import list_encoders
    from triptych.progress import notify

    encoder_infos, plugin_problems = list_encoders(ENCODERS)
    for problem in plugin_problems:
        notify(problem)
    if as_json:
        terminal.print_json([asdict(info) for info in encoder_infos])
    else:
        terminal.print_encoders(encoder_infos)
