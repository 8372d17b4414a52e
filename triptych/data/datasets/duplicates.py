"""Find files with the same bytes. Sizes are compared first, so that most files need not be read."""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

PREFIX_BYTES = 1 << 16  # files of equal size are read completely only if their first PREFIX_BYTES bytes agree


def hash_identical_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Return path -> content hash for all files whose content occurs more than once."""
    candidates = [list(paths)]
    for key in (lambda path: path.stat().st_size, _hash_prefix):
        candidates = [part for group in candidates for part in _group_by_key(group, key)]
    digests = {path: hash_file(path) for group in candidates for path in group}
    counts = Counter(digests.values())
    return {path: digest for path, digest in digests.items() if counts[digest] > 1}


def _group_by_key(paths: Iterable[Path], key: Callable[[Path], Hashable]) -> list[list[Path]]:
    """Group paths by `key(path)`. Drop groups of a single path, and unreadable files."""
    groups: dict[Hashable, list[Path]] = {}
    for path in paths:
        try:
            groups.setdefault(key(path), []).append(path)
        except OSError:
            continue
    return [part for part in groups.values() if len(part) > 1]


def _hash_prefix(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(PREFIX_BYTES)).digest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
