"""triptych serve"""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    uri: Annotated[str, typer.Argument(help="Folder of the collection, or s3://… of one.")] = "collection",
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any but this machine's own demands a token, which is shown.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8765,
    report: Annotated[Path | None, typer.Option(help="A run's report (HTML) to open from the page.")] = None,
    review: Annotated[Path | None, typer.Option(help="Folder of an audit's review to open from the page.")] = None,
) -> None:
    """Serve a collection: a page to search it in the browser, and the same over HTTP (/openapi.json). Ctrl-C stops it.

    Nothing leaves this machine: the page works offline, and uploads are forgotten as soon as they are answered.

    \b
    Examples:
      triptych serve
      triptych serve demo/collection --port 9000
      triptych serve collection --host 0.0.0.0
      triptych serve collection --report runs/mine-report.html --review audits/mine
    """
    from triptych.app import terminal
    from triptych.app.server import bind_socket, create_app, make_token
    from triptych.app.server import serve as run_server
    from triptych.app.server.review import ReviewFiles
    from triptych.errors import UsageError
    from triptych.search.collection import Collection

    if report is not None and not report.is_file():
        raise UsageError(f"--report {report}: no such file; `triptych report` writes one")
    if review is not None and not ReviewFiles(review).page.is_file():
        raise UsageError(f"--review {review}: no review.html there; `triptych audit` writes one")
    collection, token = Collection.open(uri), make_token(host)
    with bind_socket(host, port) as listener:
        app = create_app(collection, token=token, report=report, review=review)
        host_name = f"[{host}]" if ":" in host else host
        url = f"http://{host_name}:{listener.getsockname()[1]}/"
        terminal.stdout.print(f"{uri}: {len(collection)} items at {url}{f'?token={token}' if token else ''}")
        if token:
            terminal.stderr.print(
                "reachable from other machines, so every request needs this token (shown this once; a new one at each "
                "start); traffic is not encrypted: put a proxy with TLS in front of it outside your own network"
            )
        terminal.stderr.print("Ctrl-C stops it")
        run_server(app, listener)
