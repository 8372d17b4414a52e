"""Train one embedding space for audio, images and text on your own pairs, evaluate the space, and search with it.

    import triptych
    space = triptych.train("trimodal", data="pairs.csv")
    hits = triptych.Collection.open("collection").search(triptych.Source("text", "rain on a tin roof"))

Importing the package is fast: torch and other libraries are imported when a name is first used.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych.auditing.audit import audit
    from triptych.checkpoint import load, save_pretrained
    from triptych.evaluation.comparison import compare
    from triptych.evaluation.evaluate import evaluate
    from triptych.interfaces import Source
    from triptych.recipe import Recipe
    from triptych.search.collection import Collection
    from triptych.space import Space
    from triptych.training.callbacks import Callback
    from triptych.training.loop import train

__version__ = "0.1.0"
__all__ = ["Callback", "Collection", "Recipe", "Source", "Space", "__version__"]
__all__ += ["audit", "compare", "evaluate", "load", "save_pretrained", "train"]

# OpenMP threads should sleep while they wait. By default, waiting OpenMP threads spin. On a busy machine, a spinning
# thread takes the processor from the thread for which it waits. OpenMP reads this environment variable when torch is
# imported. setdefault keeps a value that the user has set.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_MODULE_BY_NAME = {
    "Callback": "triptych.training.callbacks",
    "Collection": "triptych.search.collection",
    "Recipe": "triptych.recipe",
    "Source": "triptych.interfaces",
    "Space": "triptych.space",
    "audit": "triptych.auditing.audit",
    "compare": "triptych.evaluation.comparison",
    "evaluate": "triptych.evaluation.evaluate",
    "load": "triptych.checkpoint",
    "save_pretrained": "triptych.checkpoint",
    "train": "triptych.training.loop",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_BY_NAME:
        return getattr(import_module(_MODULE_BY_NAME[name]), name)
    raise AttributeError(f"module 'triptych' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
