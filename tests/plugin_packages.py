"""Packages with plug-ins, as pip installs them: modules and a .dist-info folder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from triptych.data.datasets import DATASETS
from triptych.encoders import ENCODERS
from triptych.heads import HEADS
from triptych.objectives import OBJECTIVES
from triptych.similarities import SIMILARITIES

REGISTRIES = (ENCODERS, HEADS, SIMILARITIES, OBJECTIVES, DATASETS)
LOSS = """
from triptych.objectives import Objective

class {name}(Objective):
    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def terms(self, pair):
        return {{"loss": (self.margin - pair.scores().diagonal()).mean()}}

"""
LEAVE_TRACE = "import pathlib; pathlib.Path({trace!r}).write_text('imported')\n"


def write_modules(folder: Path, **modules: str) -> None:
    """Write Python modules; `a__b` is the sub-module b of the package a."""
    for name, text in modules.items():
        *parents, stem = name.split("__")
        parent = folder.joinpath(*parents)
        parent.mkdir(parents=True, exist_ok=True)
        (parent / f"{stem or '__init__'}.py").write_text(text)


def install(folder: Path, package: str, version: str = "1.0", **entry_points: str) -> None:
    """Write the metadata of a package, as pip does; `objectives="a = b:C"` registers an entry point."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    groups = [f"[triptych.{group}]\n{lines}\n" for group, lines in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(groups))


@contextmanager
def package_folder(folder: Path) -> Iterator[Path]:
    """Put a new folder for packages on sys.path; at the end, forget its modules and plug-ins."""
    folder.mkdir()
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for registry in REGISTRIES:
            patch.setattr(registry, "_loaded", {})
        yield folder
    for name in set(sys.modules) - before:
        spec = sys.modules[name].__spec__
        if spec and str(folder) in f"{spec.origin} {spec.submodule_search_locations}":
            del sys.modules[name]
