"""Every error a user can cause, as one tree.

TriptychError           catch this one to catch them all
├── UsageError          the command or call does not make sense as it stands
├── RecipeError         a recipe has an unknown key, a wrong value or parts that do not fit together
├── ManifestError       a manifest cannot be used as it is; the message names row and column
├── InputError          numbers given to a mechanism make no sense: shapes, NaN, an empty batch, a range
├── MediaError          one file cannot be read as sound, picture or text; batch work skips it and lists it
├── CheckpointError     a saved space, run or weight file is missing, cannot be read, or does not belong here
├── TrainingError       training cannot start or cannot go on
└── CollectionError     a collection cannot be read, or was made with another space

Each message says what is wrong, what was found and what to do. The command line prints it without a traceback and
exits with code 2. Errors that are not in this tree are our bugs.
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches


class TriptychError(Exception):
    """Anything a user can cause and mend."""


class UsageError(TriptychError):
    """The command or call does not make sense as it stands."""


class RecipeError(TriptychError):
    """A recipe has an unknown key, a wrong value or parts that do not fit together."""


class ManifestError(TriptychError):
    """A manifest cannot be used as it is."""


class InputError(TriptychError):
    """Numbers given to a mechanism make no sense; the message names the argument and what was found."""


class MediaError(TriptychError):
    """One file cannot be read as what it should be."""


class CheckpointError(TriptychError):
    """A saved space, run or weight file is missing, cannot be read, or does not belong here."""


class TrainingError(TriptychError):
    """Training cannot start or cannot go on."""


class CollectionError(TriptychError):
    """A collection cannot be read, or was made with another space."""


def check_range(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """The one sentence for every number that is out of its range; NaN and infinity are out of every range."""
    if not minimum <= value <= maximum or math.isinf(value):
        allowed = f"at least {minimum:g}" if math.isinf(maximum) else f"between {minimum:g} and {maximum:g}"
        raise RecipeError(f"{name} = {value}: must be {allowed}")


def describe_unknown(category: str, name: str, known_names: Iterable[str]) -> str:
    """The one sentence for every unknown name: what was found, what is known, which was probably meant."""
    names = sorted(known_names)
    matches = get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {matches[0]!r}?" if matches else ""
    return f"{category} {name!r} is unknown; known: {', '.join(names) or 'none'}{suggestion}"
