"""The `triptych serve` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import MovedRoots, MovedSpace, accepts_execution, accepts_plugins


@accepts_plugins
@accepts_execution
def serve(
    uri: Annotated[
        str, typer.Argument(help="Collection: a folder or s3://….", callback=checks.check_collection)
    ] = "collection",
    host: Annotated[
        str, typer.Option(help="Address to bind. Addresses other than loopback require a token, which is printed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 picks a free one.")] = 8765,
    space: MovedSpace = None,
    root: MovedRoots = None,
    report: Annotated[Path | None, typer.Option(help="Report (HTML) to link from the page.")] = None,
    review: Annotated[Path | None, typer.Option(help="Audit folder whose review page is linked from the page.")] = None,
) -> None:
    """Serve a collection: a search page for the browser and an HTTP API (/openapi.json). Stop it with Ctrl-C.

    The page works offline. Uploaded files are deleted as soon as the request is answered.

    \b
    Examples:
      triptych serve
      triptych serve demo/collection --port 9000
      triptych serve collection --host 0.0.0.0
      triptych serve collection --root recordings=/mnt/recordings
      triptych serve collection --report runs/mine-report.html --review audits/mine
    """
    from triptych.app import collections, server, terminal
    from triptych.search.collection import Collection
    from triptych.search.roots import parse_roots

    server.check_linked_pages(report, review)
    collection, token = Collection(uri, space, roots=parse_roots(root or ())), server.make_token(host)
    collections.print_missing_roots(collection)
    with server.bind_socket(host, port) as listener:
        app = server.create_app(collection, token=token, report=report, review=review)
        terminal.stdout.print(f"{uri}: {len(collection)} items at {server.format_url(host, listener, token)}")
        if token:
            terminal.stderr.print(
                "the server is reachable from other machines, so every request needs this token; the token changes at "
                "each start. Traffic is not encrypted: outside your own network, use a reverse proxy with TLS"
            )
        terminal.stderr.print("press Ctrl-C to stop")
        server.serve(app, listener)
