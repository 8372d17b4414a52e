"""Where the real data lie that tests and benches measure on: not part of the project, and not needed to use it."""

import csv
import os
import re
from collections import defaultdict
from pathlib import Path

from triptych.encoders import yamnet

BESIDE = Path(__file__).parent.parent.parent / "shared" / "data"  # beside the checkout


def find(name: str) -> Path | None:
    """The folder of a data set: below TRIPTYCH_DATA, or below shared/data beside the checkout; None where absent."""
    roots = [Path(root) for root in (os.environ.get(yamnet.DATA_VARIABLE), BESIDE) if root]
    return next((root / name for root in roots if (root / name).is_dir()), None)


def yamnet_weights() -> str:
    """The path of YAMNet's weights; empty where they are only to be had otherwise."""
    folder = find("yamnet")
    return str(folder / yamnet.WEIGHTS) if folder else ""


def esc50_clips(folder: Path) -> list[tuple[Path, int, int, str]]:
    """Every clip with its fold, class number and class name."""
    with (folder / "meta.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(folder / "audio" / r["filename"], int(r["fold"]), int(r["target"]), r["category"]) for r in rows]


def flickr8k_captions(folder: Path) -> dict[Path, list[str]]:
    """Every photograph that is there, with its five captions."""
    found = defaultdict(list)
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        name, caption = line.split("\t")
        found[folder / "images" / name.partition("#")[0]].append(caption)
    return {path: captions for path, captions in sorted(found.items()) if path.is_file()}


def all_say(captions: list[str], word: str) -> bool:
    """Whether every caption has the word, or its plural."""
    return all(re.search(rf"\b{word}s?\b", caption, re.IGNORECASE) for caption in captions)
