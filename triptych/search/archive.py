"""Export a collection to one file, and import such a file.

The file is an uncompressed ZIP archive with the members collection.json (roots, space, SHA-256 of the other members),
items.jsonl (a line of metadata for each item), vectors.bin (the vectors of each item, in the same order) and, if the
collection has a copy of its space, space.safetensors. It has no absolute paths. Equal collections give equal files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import numpy as np
import pyarrow as pa

from triptych.data.cache import Cache
from triptych.encoders.joint_models import LIBRARIES
from triptych.errors import CollectionError
from triptych.files import atomic_write, extract_os_error_code, remove_stale_temp_files, suggest_remedy
from triptych.progress import ProgressBar, track_progress
from triptych.search.collection_folder import SPACE_FILE, find_index_folder, missing_collection_error
from triptych.search.collection_space import find_space_copy
from triptych.search.item import METADATA_COLUMNS, VECTOR_COLUMNS
from triptych.search.roots import is_root_name
from triptych.search.store import FORMAT_VERSION, Store

ARCHIVE_FORMAT, HEADER_FILE, ITEMS_FILE, VECTORS_FILE = (
    "triptych-collection-1",
    "collection.json",
    "items.jsonl",
    "vectors.bin",
)
ROWS_PER_BATCH = 1000  # rows that are read or written together
BLOCK_BYTES = 2**20
MAX_HEADER_BYTES, MAX_LINE_BYTES, MAX_VECTOR_BYTES = 2**20, 2**24, 2**28
LENGTHS = struct.Struct("<qq")  # bytes of the embedding and of the parts of an item; -1 if there are none


@dataclass(frozen=True)
class ArchiveHeader:
    """The metadata of an exported collection."""

    fingerprint: str
    space_path: str  # the name of the space; empty if the space has only a path on the machine of the export
    space_revision: str | None
    key_dim: int
    num_items: int
    next_row_id: int
    roots: list[str]
    sha256: dict[str, str] = field(default_factory=dict)  # by name of the member
    format: str = ARCHIVE_FORMAT
    collection_format: int = FORMAT_VERSION

    @property
    def contains_space(self) -> bool:
        """Whether the file contains the space."""
        return SPACE_FILE in self.sha256


def export_collection(uri: str, path: Path, show_progress: bool = True) -> ArchiveHeader:
    """Write a collection to one file. The file replaces an existing file only when it is complete."""
    store = Store.open(uri)
    if store is None:
        raise missing_collection_error(uri)
    space_copy = find_space_copy(uri, store.metadata.fingerprint, find_index_folder(uri, Cache.default().folder))
    row_ids = np.sort(store.select_rows(["row_id"])["row_id"].to_numpy())
    sha256: dict[str, str] = {}
    remove_stale_temp_files(path.parent, [path.name])
    try:
        with (
            atomic_write(path) as temp_path,
            zipfile.ZipFile(temp_path, "w") as archive,
            track_progress("exporting", 2 * len(row_ids), show_progress) as progress_bar,
        ):
            if space_copy is not None:
                with space_copy.open("rb") as source, _write_member(archive, SPACE_FILE, sha256) as member:
                    shutil.copyfileobj(source, member, BLOCK_BYTES)
            with _write_member(archive, ITEMS_FILE, sha256) as member:
                for table in _iter_tables(store, row_ids, METADATA_COLUMNS, progress_bar):
                    member.write("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()).encode())
            with _write_member(archive, VECTORS_FILE, sha256) as member:
                for table in _iter_tables(store, row_ids, ("row_id", *VECTOR_COLUMNS), progress_bar):
                    member.write(_encode_vectors(table))
            header = _make_header(store, len(row_ids), sha256)
            archive.writestr(zipfile.ZipInfo(HEADER_FILE), json.dumps(vars(header), indent=2))
    except OSError as error:
        remedy = suggest_remedy(extract_os_error_code(error) or 0)
        raise CollectionError(f"{path}: cannot be written ({error.strerror}); {remedy}") from error
    return header


def _make_header(store: Store, num_items: int, sha256: dict[str, str]) -> ArchiveHeader:
    return ArchiveHeader(
        fingerprint=store.metadata.fingerprint,
        space_path=store.space_path if _is_portable(store.space_path) else "",
        space_revision=store.metadata.space_revision,
        key_dim=store.schema.field("vector").type.list_size,
        num_items=num_items,
        next_row_id=store.find_next_row_id(),
        roots=sorted(store.roots.paths),
        sha256=sha256,
    )


def _is_portable(name: str) -> bool:
    """Return whether the name of a space contains no absolute path."""
    parts = [part[3:] if part[:3] in LIBRARIES else part for part in name.split("+")]
    return not any(PurePosixPath(part).is_absolute() or PureWindowsPath(part).is_absolute() for part in parts)


def _iter_tables(
    store: Store, row_ids: np.ndarray, columns: Sequence[str], progress_bar: ProgressBar
) -> Iterator[pa.Table]:
    """Yield columns of all items in blocks, ordered by row id."""
    for first in range(0, len(row_ids), ROWS_PER_BATCH):
        block = row_ids[first : first + ROWS_PER_BATCH]
        condition = f"row_id >= {block[0]} AND row_id <= {block[-1]}"
        yield store.select_rows(columns, condition).sort_by("row_id")
        progress_bar.advance(len(block))


def _encode_vectors(table: pa.Table) -> bytes:
    blocks = []
    for row in table.to_pylist():
        embedding, parts = row["embedding"], row["parts"]
        lengths = (-1 if value is None else len(value) for value in (embedding, parts))
        blocks += [np.asarray(row["vector"], "<f4").tobytes(), LENGTHS.pack(*lengths), embedding or b"", parts or b""]
    return b"".join(blocks)


@contextmanager
def _write_member(archive: zipfile.ZipFile, name: str, sha256: dict[str, str]) -> Iterator[_HashingWriter]:
    with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
        writer = _HashingWriter(member)
        yield writer
    sha256[name] = writer.digest.hexdigest()


class _HashingWriter:
    """Writes to a file and computes the SHA-256 of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


class ArchiveReader:
    """Reads an exported collection. Nothing in the file is trusted: all sizes, hashes and values are checked.

    No member is unpacked under its own name, and members must be uncompressed, so that a small file stays small.
    """

    _embed_dim = 0  # of the items that were read; 0 if there are none

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        members = {info.filename: info for info in archive.infolist()}
        expected = {HEADER_FILE, ITEMS_FILE, VECTORS_FILE}
        if not expected <= set(members) <= expected | {SPACE_FILE} or len(members) != len(archive.infolist()):
            raise CollectionError(f"{path}: not a collection file; `triptych collection export` writes such files")
        for info in members.values():
            is_plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
            if not is_plain or info.file_size != info.compress_size:
                raise self.make_error(f"{info.filename} is compressed or encrypted")
        self._members = members
        self.header = self._read_header()
        for name, digest in self.header.sha256.items():
            if self._compute_digest(name) != digest:
                raise self.make_error(f"{name} has another SHA-256 than {HEADER_FILE} says")

    def make_error(self, problem: str) -> CollectionError:
        """Return the error for a file that is damaged."""
        return CollectionError(f"{self.path}: damaged ({problem}); copy or export the file again")

    def open_member(self, name: str) -> IO[bytes]:
        """Open a member of the archive for reading."""
        return self._archive.open(self._members[name])

    def _compute_digest(self, name: str) -> str:
        digest = hashlib.sha256()
        with self.open_member(name) as member:
            while block := member.read(BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def _read_header(self) -> ArchiveHeader:
        if self._members[HEADER_FILE].file_size > MAX_HEADER_BYTES:
            raise self.make_error(f"{HEADER_FILE} is too large")
        try:
            record = json.loads(self._archive.read(HEADER_FILE))
            versions = record.get("format"), record.get("collection_format")
            if versions != (ARCHIVE_FORMAT, FORMAT_VERSION):
                problem = f"written by another version of triptych (format {versions[0]}, {versions[1]})"
                raise CollectionError(f"{self.path}: {problem}; index the files again with `triptych index`")
            header = ArchiveHeader(**record)
            is_valid = (
                set(header.sha256) == set(self._members) - {HEADER_FILE}
                and all(isinstance(name, str) and is_root_name(name) for name in header.roots)
                and all(type(x) is int for x in (header.key_dim, header.num_items, header.next_row_id))
                and isinstance(header.fingerprint, str)
                and isinstance(header.space_path, str)
                and isinstance(header.space_revision, str | None)
                and 0 < header.key_dim <= 2**16
                and 0 <= header.num_items <= header.next_row_id < 2**62
            )
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.make_error(f"{HEADER_FILE} cannot be read: {error}") from error
        if not is_valid:
            raise self.make_error(f"{HEADER_FILE} contains invalid values")
        return header

    def iter_rows(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of the table in blocks, with the vector columns as bytes."""
        with self.open_member(ITEMS_FILE) as items, self.open_member(VECTORS_FILE) as vectors:
            block: list[dict[str, Any]] = []
            for _ in range(self.header.num_items):
                block.append(self._read_row(items) | self._read_vectors(vectors))
                if len(block) == ROWS_PER_BATCH:
                    yield block
                    block = []
            if block:
                yield block
            if items.read(1) or vectors.read(1):
                raise self.make_error(f"more than {self.header.num_items} items")

    def _read_row(self, file: IO[bytes]) -> dict[str, Any]:
        line = file.readline(MAX_LINE_BYTES)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.make_error(f"a line of {ITEMS_FILE} cannot be read") from error
        if not isinstance(row, dict) or set(row) != set(METADATA_COLUMNS):
            raise self.make_error(f"a line of {ITEMS_FILE} has other columns")
        return row

    def _read_vectors(self, file: IO[bytes]) -> dict[str, Any]:
        key = self._read_exactly(file, 4 * self.header.key_dim)
        sizes = LENGTHS.unpack(self._read_exactly(file, LENGTHS.size))
        embedding, parts = (None if size == -1 else self._read_exactly(file, size) for size in sizes)
        if len(embedding or b"") % 4 or len(parts or b"") % 2:
            raise self.make_error(f"{VECTORS_FILE} contains incomplete numbers")
        numbers = np.frombuffer(key if embedding is None else embedding, "<f4")
        self._embed_dim = self._embed_dim or len(numbers)
        if not 0 < len(numbers) == self._embed_dim or parts == b"" or len(parts or b"") // 2 % self._embed_dim:
            raise self.make_error(f"{VECTORS_FILE} contains vectors of different dimensions")
        for values in (numbers, np.frombuffer(key, "<f4"), np.frombuffer(parts or b"", "<f2")):
            if not np.isfinite(values).all():
                raise self.make_error("a vector contains NaN or infinity")
        return {"vector": key, "embedding": embedding, "parts": parts}

    def _read_exactly(self, file: IO[bytes], size: int) -> bytes:
        data = file.read(size) if 0 <= size <= MAX_VECTOR_BYTES else b""
        if len(data) != size:
            raise self.make_error(f"{VECTORS_FILE} ends too early")
        return data


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """Open an exported collection and verify its content. Raise a CollectionError if it is cut short or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield ArchiveReader(path, archive)
    except zipfile.BadZipFile as error:
        problem = f"cut short or not a collection file ({error})"
        raise CollectionError(f"{path}: {problem}; copy or export the file again") from error
    except (OSError, NotImplementedError, EOFError, struct.error) as error:
        raise CollectionError(f"{path}: cannot be read ({error})") from error


@contextmanager
def extract_space(reader: ArchiveReader) -> Iterator[Path]:
    """Yield a temporary path of the space in an exported collection."""
    with tempfile.TemporaryDirectory(prefix="triptych-import-") as folder:
        path = Path(folder) / SPACE_FILE
        with reader.open_member(SPACE_FILE) as member, path.open("xb") as file:
            shutil.copyfileobj(member, file, BLOCK_BYTES)
        yield path
