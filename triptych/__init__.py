"""One embedding space for audio, images and text: train, evaluate, audit and search.

    import triptych

    space = triptych.load("runs/mine")
    embeddings = space.encode(["a dog barks", Path("bark.wav"), Image.open("dog.jpg")])
    media = triptych.Collection("media", space)
    media.add("~/recordings")
    hits = media.search("rain on a tin roof", modality="audio", k=5)

`triptych.losses` has the training losses for your own loop, `triptych.evaluation` measures score matrices of any model.
Importing the package is fast: torch and other libraries are imported when a name is first used.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triptych import errors, evaluation, losses
    from triptych.auditing.audit import audit
    from triptych.checkpoint import load
    from triptych.evaluation.comparison import compare
    from triptych.evaluation.evaluate import evaluate
    from triptych.interfaces import Source
    from triptych.recipe import Recipe
    from triptych.search.collection import Collection
    from triptych.search.item import Hit, Hits
    from triptych.search.query import Filter, Query, StoredItem
    from triptych.space import Space
    from triptych.training.callbacks import Callback
    from triptych.training.loop import train

__version__ = "0.1.0"
__all__ = ["Callback", "Collection", "Filter", "Hit", "Hits", "Query", "Recipe", "Source", "Space", "StoredItem"]
__all__ += ["__version__", "audit", "compare", "errors", "evaluate", "evaluation", "load", "losses", "train"]

# OpenMP threads should sleep while they wait. By default, waiting OpenMP threads spin. On a busy machine, a spinning
# thread takes the processor from the thread for which it waits. OpenMP reads this environment variable when torch is
# imported. setdefault keeps a value that the user has set.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_MODULE_BY_NAME = {
    "Callback": "triptych.training.callbacks",
    "Collection": "triptych.search.collection",
    "Filter": "triptych.search.query",
    "Hit": "triptych.search.item",
    "Hits": "triptych.search.item",
    "Query": "triptych.search.query",
    "Recipe": "triptych.recipe",
    "Source": "triptych.interfaces",
    "Space": "triptych.space",
    "StoredItem": "triptych.search.query",
    "audit": "triptych.auditing.audit",
    "compare": "triptych.evaluation.comparison",
    "evaluate": "triptych.evaluation.evaluate",
    "load": "triptych.checkpoint",
    "train": "triptych.training.loop",
}
_MODULES = ("errors", "evaluation", "losses")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"triptych.{name}")
    if name in _MODULE_BY_NAME:
        return getattr(import_module(_MODULE_BY_NAME[name]), name)
    raise AttributeError(f"module 'triptych' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
