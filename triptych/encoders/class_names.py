"""The class names of ImageNet and AudioSet, in the order in which pretrained encoders predict the classes."""

from functools import cache
from importlib.resources import files


def imagenet_class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 classes of ImageNet-1k."""
    return _read_lines("imagenet_classes.txt")


def audioset_class_names() -> tuple[str, ...]:
    """Return the display names of the 527 classes of AudioSet, which Google published under CC BY 4.0."""
    return _read_lines("audioset_classes.txt")


@cache
def _read_lines(name: str) -> tuple[str, ...]:
    return tuple(files("triptych.encoders").joinpath(name).read_text("utf-8").splitlines())
