"""The exception classes for all errors that users can cause.

TriptychError           the base class
├── UsageError          a command or call has invalid arguments
├── RecipeError         a recipe has an unknown key, an invalid value or incompatible components
├── PluginError         a plug-in is not allowed, not installed or not usable
├── ManifestError       a manifest is invalid; the message names the row and the column
├── InputError          a tensor is invalid: a wrong shape, NaN, an empty batch, a value out of range
├── MediaError          a file cannot be read as audio, image, video or text; batch processing skips the file
├── CheckpointError     a space file, run folder or weight file is missing, unreadable or incompatible
├── TrainingError       training cannot start or continue
└── CollectionError     a collection cannot be read, or its items were embedded by another space

Each message says what is wrong, in which file or argument, and what to do. The command line prints the message without
a traceback and exits with code 2. Any other exception is a bug in triptych.
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches


class TriptychError(Exception):
    """An error that a user can cause and fix."""


class UsageError(TriptychError):
    """A command or call has invalid arguments."""


class RecipeError(TriptychError):
    """A recipe has an unknown key, an invalid value or incompatible components."""


class PluginError(TriptychError):
    """A plug-in is not allowed, not installed or not usable; the message names its package."""


class ManifestError(TriptychError):
    """A manifest is invalid; the message names the row and the column."""


class InputError(TriptychError):
    """A tensor argument is invalid; the message names the argument and its value."""


class MediaError(TriptychError):
    """A file cannot be read as the expected modality."""


class CheckpointError(TriptychError):
    """A space file, run folder or weight file is missing, unreadable or incompatible."""


class TrainingError(TriptychError):
    """Training cannot start or continue."""


class CollectionError(TriptychError):
    """A collection cannot be read, or its items were embedded by another space."""


def check_range(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """Raise RecipeError if a number is NaN, infinite or outside the range [minimum, maximum]."""
    if not minimum <= value <= maximum or math.isinf(value):
        allowed = f"at least {minimum:g}" if math.isinf(maximum) else f"between {minimum:g} and {maximum:g}"
        raise RecipeError(f"{name} = {value}: must be {allowed}")


def describe_unknown(category: str, name: str, known_names: Iterable[str]) -> str:
    """Return an error message with the unknown name, the known names and the closest known name."""
    names = sorted(known_names)
    matches = get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {matches[0]!r}?" if matches else ""
    return f"{category} {name!r} is unknown; known: {', '.join(names) or 'none'}{suggestion}"
