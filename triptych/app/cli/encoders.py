"""The `triptych encoders` command."""

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
    terminal.print_results(encoder_infos, as_json, terminal.print_encoders)
