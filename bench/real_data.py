"""Locations of the real datasets that tests and benchmarks use. They are not part of the project."""

import csv
import os
import re
from collections import defaultdict
from pathlib import Path

from triptych.encoders import ENCODERS
from triptych.encoders.fetch import fetch_weights

DATA_VARIABLE = "TRIPTYCH_DATA"
SHARED_DATA = Path(__file__).parent.parent.parent / "shared" / "data"  # beside the checkout
# The encoders whose weights lie beside the datasets: the folder and the file.
SHARED_WEIGHTS = {
    "yamnet": ("yamnet", "yamnet.safetensors"),
    "efficientat_mn04": ("efficientat", "mn04_as.safetensors"),
}


def find_dataset(name: str) -> Path | None:
    """Return the folder of a dataset in TRIPTYCH_DATA, or in shared/data beside the checkout, or None."""
    roots = [Path(root) for root in (os.environ.get(DATA_VARIABLE), SHARED_DATA) if root]
    return next((root / name for root in roots if (root / name).is_dir()), None)


def install_weights() -> None:
    """Copy the weights that lie beside the datasets into the user's folder of weights, if they are missing there."""
    for encoder, (dataset, name) in SHARED_WEIGHTS.items():
        if (folder := find_dataset(dataset)) and ENCODERS[encoder].unavailable_reason():
            fetch_weights(ENCODERS[encoder], folder / name)


def read_esc50_clips(folder: Path) -> list[tuple[Path, int, int, str]]:
    """List each clip with its fold, class index and class name."""
    with (folder / "meta.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(folder / "audio" / r["filename"], int(r["fold"]), int(r["target"]), r["category"]) for r in rows]


def read_flickr8k_captions(folder: Path) -> dict[Path, list[str]]:
    """Return the five captions of each image that exists."""
    captions_by_image = defaultdict(list)
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        name, caption = line.split("\t")
        captions_by_image[folder / "images" / name.partition("#")[0]].append(caption)
    return {path: captions for path, captions in sorted(captions_by_image.items()) if path.is_file()}


def all_contain_word(captions: list[str], word: str) -> bool:
    """Return whether every caption contains a word or its plural."""
    return all(re.search(rf"\b{word}s?\b", caption, re.IGNORECASE) for caption in captions)
