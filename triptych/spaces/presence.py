"""Check that the name of a space refers to something, without the import of libraries that take seconds."""

from __future__ import annotations

from pathlib import Path

from triptych.errors import CheckpointError
from triptych.hub import MODEL_PREFIXES
from triptych.spaces.known import STARTER

COMPOSITE_SEPARATOR = "+"
MODEL_FILES = ("space.safetensors", "model.safetensors", "config.json", "modules.json", "bridge.safetensors")


def check_space(name: str | Path) -> None:
    """Raise CheckpointError if there is certainly no space of this name.

    The name of a model on the hub is not checked, because the check would need the network.
    """
    text, path = str(name), Path(name).expanduser()
    if text == STARTER or text.startswith(MODEL_PREFIXES) or path.is_file():
        return
    if path.is_dir():
        if not any((path / file).is_file() for file in MODEL_FILES):
            raise no_space_error(path)
        return
    if COMPOSITE_SEPARATOR in text:
        for part in text.split(COMPOSITE_SEPARATOR):
            check_space(part.strip())
        return
    raise CheckpointError(
        f"{path}: no such run folder or space file; create it with `triptych train`, or choose a space that needs no "
        "training (`triptych spaces` lists them)"
    )


def no_space_error(folder: Path) -> CheckpointError:
    """Return the error for a folder that contains neither a space nor a joint model."""
    expected = f"no {MODEL_FILES[0]} in this folder, and no joint model (CLIP, SigLIP, CLAP)"
    return CheckpointError(f"{folder}: {expected}; give the folder of a finished training run")
