"""Write docs/mechanisms.md from the docstrings of the registries: python docs/mechanisms.py"""

import inspect
from pathlib import Path

from triptych.encoders import ENCODERS
from triptych.heads import HEADS
from triptych.objectives import OBJECTIVES
from triptych.settings import read_arguments
from triptych.similarities import SIMILARITIES

REGISTRIES = {"Similarities": SIMILARITIES, "Objectives": OBJECTIVES, "Encoders": ENCODERS, "Heads": HEADS}
HEADER = """# Mechanisms

All mechanisms that a recipe can use, generated from the docstrings of the code (`make docs`). Settings are the keys of
the recipe, with their defaults.
"""


def render_page() -> str:
    """Return the page as Markdown."""
    sections = [HEADER]
    for title, registry in REGISTRIES.items():
        sections.append(f"## {title}\n")
        for name, mechanism in registry.items():
            arguments = read_arguments(registry, name, reserved=()).values()
            settings = [f"`{a.name} = {a.default!r}`" for a in arguments]
            sections.append(f"### `{name}`\n\n```text\n{inspect.getdoc(mechanism)}\n```\n")
            sections.append(f"Settings: {', '.join(settings) or 'none'}.\n")
    return "\n".join(sections)


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(render_page(), encoding="utf-8")
