"""triptych cache"""

import json
from typing import Annotated

import typer


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove everything: it is computed again when needed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is kept of frozen encoders' features, and how large it is.

    It lies in TRIPTYCH_CACHE, or where the system keeps caches. A file is computed once, whatever it is called.

    \b
    Examples:
      triptych cache
      triptych cache --clear
    """
    from triptych.app import show
    from triptych.data.cache import Cache

    kept = Cache.default()
    if clear:
        kept.clear()
    sizes = kept.sizes()
    if as_json:
        shelves = [{"encoder": about, "items": items, "bytes": size} for about, items, size in sizes]
        typer.echo(json.dumps({"folder": str(kept.folder), "shelves": shelves}, indent=2))
        return
    show.out.print(f"{kept.folder}: {sum(size for *_, size in sizes) / 1e6:,.0f} MB", highlight=False, soft_wrap=True)
    for about, items, size in sizes:
        show.out.print(f"{items:>9,} items {size / 1e6:>9,.1f} MB  {about}", highlight=False, soft_wrap=True)
