"""triptych encoders"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triptych.interfaces import Encoder


def encoders(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the encoders a recipe can name: what they take and give, where they come from, and whether they are at hand.

    \b
    Examples:
      triptych encoders
      triptych encoders --json
    """
    from triptych.encoders import ENCODERS
    from triptych.interfaces import MODALITIES

    rows = [_describe_encoder(name, cls) for name, cls in ENCODERS.items()]
    rows.sort(key=lambda facts: (MODALITIES.index(facts["modality"]), facts["frozen"]))
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_table(rows)


def _describe_encoder(name: str, cls: type[Encoder]) -> dict[str, Any]:
    """What there is to know of one encoder with its default settings."""
    encoder = _build_encoder(cls)
    return {
        "name": name,
        "modality": cls.modality,
        "feature_dim": getattr(encoder or cls, "feature_dim", None),
        "part_name": cls.part_name,
        "parameters": sum(p.numel() for p in encoder.parameters()) if encoder else None,
        "frozen": cls.frozen,
        "licence": cls.licence,
        "origin": cls.origin,
        "unavailable_reason": cls.unavailable_reason(),
    }


def _build_encoder(cls: type[Encoder]) -> Encoder | None:
    """One to count the parameters of; None where its shape depends on what is not at hand."""
    import torch

    from triptych.errors import TriptychError

    if cls.unavailable_reason() and not hasattr(cls, "feature_dim"):
        return None  # it takes its shape from what is missing; trying would load that library for nothing
    try:
        # Given weights are large, so theirs are counted where nothing is stored; small ones are made at once, as
        # drawing their random weights without storing them would load a second's worth of code.
        with torch.device("meta" if cls.frozen else "cpu"):
            return cls()
    except TriptychError:
        return None


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    from triptych.app.terminal import stdout

    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("encoder", "takes", "part", "feature_dim", "parameters", "licence", "at hand"):
        table.add_column(heading, justify="right" if heading in {"feature_dim", "parameters"} else "left", no_wrap=True)
    for facts in rows:
        weights = "–" if facts["parameters"] is None else f"{facts['parameters'] / 1e6:.1f} M"
        numbers = ("–" if facts["feature_dim"] is None else str(facts["feature_dim"]), weights)
        is_available = "no" if facts["unavailable_reason"] else "yes"
        table.add_row(facts["name"], facts["modality"], facts["part_name"], *numbers, facts["licence"], is_available)
    stdout.print(table)
    for title, key in (("where it comes from", "origin"), ("not at hand", "unavailable_reason")):
        names: dict[str, list[str]] = {}  # several encoders often have one and the same line
        for facts in rows:
            names.setdefault(facts[key] or "", []).append(facts["name"])
        lines = [f"  {', '.join(encoder_names)}: {line}" for line, encoder_names in names.items() if line]
        stdout.print("\n".join([f"{title}:", *lines]) if lines else "everything is at hand")
