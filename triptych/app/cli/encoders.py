"""triptych encoders"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triptych.contracts import Encoder


def encoders(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the encoders a recipe can name: what they take and give, where they come from, and whether they are at hand.

    \b
    Examples:
      triptych encoders
      triptych encoders --json
    """
    from triptych.contracts import MODALITIES
    from triptych.encoders import ENCODERS

    found = [_facts(name, cls) for name, cls in ENCODERS.items()]
    found.sort(key=lambda facts: (MODALITIES.index(facts["modality"]), facts["frozen"]))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print(found)


def _facts(name: str, cls: type[Encoder]) -> dict[str, Any]:
    """What there is to know of one encoder with its default settings."""
    made = _made(cls)
    return {
        "name": name,
        "modality": cls.modality,
        "width": getattr(made or cls, "width", None),
        "part": cls.kind,
        "parameters": sum(p.numel() for p in made.parameters()) if made else None,
        "frozen": cls.frozen,
        "licence": cls.licence,
        "origin": cls.origin,
        "missing": cls.missing(),
    }


def _made(cls: type[Encoder]) -> Encoder | None:
    """One to count the parameters of; None where its shape depends on what is not at hand."""
    import torch

    from triptych.errors import TriptychError

    if cls.missing() and not hasattr(cls, "width"):
        return None  # it takes its shape from what is missing; trying would load that library for nothing
    try:
        # Given weights are large, so theirs are counted where nothing is stored; small ones are made at once, as
        # drawing their random weights without storing them would load a second's worth of code.
        with torch.device("meta" if cls.frozen else "cpu"):
            return cls()
    except TriptychError:
        return None


def _print(found: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    from triptych.app.show import out

    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("encoder", "takes", "part", "width", "parameters", "licence", "at hand"):
        table.add_column(heading, justify="right" if heading in {"width", "parameters"} else "left", no_wrap=True)
    for facts in found:
        weights = "–" if facts["parameters"] is None else f"{facts['parameters'] / 1e6:.1f} M"
        numbers = ("–" if facts["width"] is None else str(facts["width"]), weights)
        at_hand = "no" if facts["missing"] else "yes"
        table.add_row(facts["name"], facts["modality"], facts["part"], *numbers, facts["licence"], at_hand)
    out.print(table)
    for title, key in (("where it comes from", "origin"), ("not at hand", "missing")):
        names: dict[str, list[str]] = {}  # several encoders often have one and the same line
        for facts in found:
            names.setdefault(facts[key] or "", []).append(facts["name"])
        lines = [f"  {', '.join(same)}: {line}" for line, same in names.items() if line]
        out.print("\n".join([f"{title}:", *lines]) if lines else "everything is at hand")
