"""Media files and manifests in every format, for the tests of manifests."""

import csv
import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

from triptych.data.manifest import Manifest, ManifestProblem, read
from triptych.errors import ManifestError

FORMATS = ("csv", "jsonl", "parquet")
ROWS = [
    {"id": "x", "audio": "a.wav", "image": "a.png", "text": "a dog", "group": "g", "split": "train", "label": "dog"},
    {"id": "y", "audio": "sub/c.wav", "image": "b.png", "text": 'says "hi",\nloud', "group": "g", "split": "train"},
    {"id": "z", "video": "a.mp4", "text": "ein Vögelchen 🐦", "split": "test", "start": 1.5, "end": 2},
]


def make_folder(tmp_path: Path) -> Path:
    """Create a folder of media files, and outside.wav next to it."""
    root = tmp_path / "data"
    root.mkdir()
    for name in ("a.wav", "b.wav", "a.png", "b.png", "a.mp4", "a.xyz", "../outside.wav"):
        (root / name).write_bytes(b"content")
    (root / "empty.wav").touch()
    (root / "sub").mkdir()
    (root / "sub" / "c.wav").write_bytes(b"content")
    (root / "leak.wav").symlink_to(root / ".." / "outside.wav")
    (root / "alias.wav").symlink_to(root / "a.wav")
    (root / "up").symlink_to(root / "..", target_is_directory=True)
    (root / "loop.wav").symlink_to(root / "loop.wav")
    return root


def write_manifest(path: Path, rows: list[dict]) -> Path:
    """Write rows in the format of the path's extension."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
    return path


def read_or_error(path: Path) -> Manifest | str:
    """Return the manifest, or the message of a ManifestError."""
    try:
        return read(path)
    except ManifestError as error:
        return str(error)


def single_problem(problems: tuple[ManifestProblem, ...], category: str) -> ManifestProblem:
    """Return the only problem of a category."""
    (problem,) = [problem for problem in problems if problem.category == category]
    return problem
