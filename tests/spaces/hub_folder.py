"""Models in a local cache of the Hugging Face hub, in the layout of the hub's library."""

import json
from pathlib import Path
from shutil import copytree

REVISION = "a" * 40


def add_model(cache: Path, name: str, model: Path) -> Path:
    """Add a saved model to a cache, as if it had been downloaded, and return its folder."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    return copytree(model, repository / "snapshots" / REVISION)


def write_placeholder(folder: Path, config: dict, files: tuple[str, ...]) -> Path:
    """Write the files of a model whose content does not matter."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        (folder / name).write_text("{}")
    return folder
