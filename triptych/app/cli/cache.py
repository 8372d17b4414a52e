"""The `triptych cache` command."""

from typing import Annotated

import typer

from triptych.app.cli.options import AsJson


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Delete all cached features. They are recomputed when needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the size of the feature cache of frozen encoders, or clear it.

    The environment variable TRIPTYCH_CACHE sets the cache folder; the default is a system folder. Features are
    stored by file content, so the features of a renamed file are not computed again.

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
        terminal.print_json({"folder": str(feature_cache.folder), "stores": stores})
        return
    terminal.stdout.print(f"{feature_cache.folder}: {sum(size for *_, size in sizes) / 1e6:,.0f} MB")
    for encoder, items, size in sizes:
        terminal.stdout.print(f"{items:>9,} items {size / 1e6:>9,.1f} MB  {encoder}")
