"""Names of spaces: split the name of a composite space, and check that a name refers to something.

Nothing is imported that takes seconds.
"""

from __future__ import annotations

from pathlib import Path

from triptych.errors import CheckpointError
from triptych.hub import MODEL_PREFIXES
from triptych.spaces.known import STARTER

COMPOSITE_SEPARATOR, SETTINGS_SEPARATOR = "+", "?"
BRIDGE_FILE = "bridge.safetensors"
MODEL_FILES = ("space.safetensors", "model.safetensors", "config.json", "modules.json", BRIDGE_FILE)


def check_space(name: str | Path) -> None:
    """Raise CheckpointError if there is certainly no space of this name.

    The name of a model on the hub is not checked, because the check would need the network.
    """
    text, path = str(name), Path(name).expanduser()
    if text == STARTER or path.is_file():
        return
    if path.is_dir():
        if not any((path / file).is_file() for file in MODEL_FILES):
            raise no_space_error(path)
        return
    names = split_names(text)
    if len(names) > 1:
        for part in names:
            check_space(part)
    elif not text.startswith(MODEL_PREFIXES):
        raise CheckpointError(
            f"{path}: no such run folder or space file; create it with `triptych train`, or choose a space that needs "
            "no training (`triptych spaces` lists them)"
        )


def split_names(name: str) -> tuple[str, ...]:
    """Split a name at the plus signs that are not part of an existing path. Raise CheckpointError for an empty part."""
    pieces, names, first = name.split(COMPOSITE_SEPARATOR), list[str](), 0
    while first < len(pieces):
        ends = range(len(pieces), first + 1, -1)
        joined = {end: COMPOSITE_SEPARATOR.join(pieces[first:end]) for end in ends}
        end = next((end for end in ends if _is_existing_path(joined[end])), first + 1)
        names.append(COMPOSITE_SEPARATOR.join(pieces[first:end]).strip())
        first = end
    if len(names) > 1 and not all(names):
        raise CheckpointError(f"{name}: a name is empty; name two or more spaces, such as runs/a+runs/b")
    return tuple(names) if len(names) > 1 else (name,)


def _is_existing_path(name: str) -> bool:
    """Return whether a name such as hf:FOLDER?dtype=bfloat16 contains an existing path, and its settings no plus."""
    location, _, settings = name.strip().partition(SETTINGS_SEPARATOR)
    location = location.removeprefix("hf:").removeprefix("st:")
    return COMPOSITE_SEPARATOR not in settings and Path(location).expanduser().exists()


def no_space_error(folder: Path) -> CheckpointError:
    """Return the error for a folder that contains neither a space nor a joint model."""
    expected = f"no {MODEL_FILES[0]} in this folder, and no joint model (CLIP, SigLIP, CLAP)"
    return CheckpointError(f"{folder}: {expected}; give the folder of a finished training run")
