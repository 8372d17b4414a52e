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
    from triptych.app import terminal
    from triptych.data.cache import Cache

    feature_cache = Cache.default()
    if clear:
        feature_cache.clear()
    sizes = feature_cache.list_stores()
    if as_json:
        stores = [{"encoder": encoder, "items": items, "bytes": size} for encoder, items, size in sizes]
        typer.echo(json.dumps({"folder": str(feature_cache.folder), "stores": stores}, indent=2))
        return
    terminal.stdout.print(
        f"{feature_cache.folder}: {sum(size for *_, size in sizes) / 1e6:,.0f} MB", highlight=False, soft_wrap=True
    )
    for about, items, size in sizes:
        terminal.stdout.print(f"{items:>9,} items {size / 1e6:>9,.1f} MB  {about}", highlight=False, soft_wrap=True)
