"""One embedding space for sound, pictures and words: train it on your own pairs, measure it, search it.

    import triptych
    space = triptych.train(triptych.Recipe.load("trimodal", ["data.manifest=pairs.csv"]), "runs/first")
    hits = triptych.Collection.open("collection").search(triptych.Source("text", "rain on a tin roof"))

Importing the package is light: torch and the rest are loaded when a name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.checkpoint import load
    from triptych.contracts import Source
    from triptych.evaluation.comparison import compare
    from triptych.evaluation.evaluate import evaluate
    from triptych.recipe import Recipe
    from triptych.search.collection import Collection
    from triptych.space import Space
    from triptych.training.loop import train

__version__ = "0.1.0"
__all__ = ["Collection", "Recipe", "Source", "Space", "__version__", "compare", "evaluate", "load", "train"]

_HOMES = {
    "Collection": "triptych.search.collection",
    "Recipe": "triptych.recipe",
    "Source": "triptych.contracts",
    "Space": "triptych.space",
    "compare": "triptych.evaluation.comparison",
    "evaluate": "triptych.evaluation.evaluate",
    "load": "triptych.checkpoint",
    "train": "triptych.training.loop",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'triptych' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
