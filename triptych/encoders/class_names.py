"""The class names of ImageNet and AudioSet, in the order in which pretrained encoders predict the classes.

Each line of the tables is a name. The names of animals, and of their sounds, are followed by a tab and a category, such
as "dog" for the breeds of dogs and for barks. Breeds and species are rare words; people name the category.
"""

from functools import cache
from importlib.resources import files

IMAGENET, AUDIOSET = "imagenet_classes.txt", "audioset_classes.txt"


def imagenet_class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 classes of ImageNet-1k."""
    return tuple(name for name, _ in _read_table(IMAGENET))


def imagenet_class_categories() -> tuple[str, ...]:
    """Return the category of each class of ImageNet-1k: one of 28 for the 397 animals, "" for the other classes."""
    return tuple(category for _, category in _read_table(IMAGENET))


def audioset_class_names() -> tuple[str, ...]:
    """Return the display names of the 527 classes of AudioSet, which Google published under CC BY 4.0."""
    return tuple(name for name, _ in _read_table(AUDIOSET))


def audioset_class_categories() -> tuple[str, ...]:
    """Return the category of each class of AudioSet: one of 21 for 40 sounds of animals, "" for the other classes."""
    return tuple(category for _, category in _read_table(AUDIOSET))


@cache
def _read_table(file_name: str) -> tuple[tuple[str, str], ...]:
    lines = files("triptych.encoders").joinpath(file_name).read_text("utf-8").splitlines()
    return tuple((name, category) for name, _, category in (line.partition("\t") for line in lines))
