"""A cache on disk for the features of frozen encoders: memory-mapped, and safe for concurrent processes.

A feature store holds the features of one encoder: an SQLite index and append-only data files, one for each process that
writes. Features are synced to disk before the index refers to them. A killed process therefore loses at most the batch
that it was writing, and never leaves an incomplete entry.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import platformdirs
import torch
from torch import Tensor

from triptych.errors import MediaError, PluginError, UsageError
from triptych.files import suggest_remedy, write_text
from triptych.interfaces import Encoder, Source

FORMAT_VERSION = 1  # version of records, keys and fingerprints; each version has its own feature stores
INDEX_FILE, METADATA_FILE = "index.sqlite", "encoder.json"
ONNX_FOLDER = "onnx"  # graphs of encoders for ONNX Runtime
TABLES_FOLDER = "tables"  # manifests and media files of Python data that was evaluated
LOCK_TIMEOUT = 60.0  # seconds to wait while another process writes
SQL_BATCH = 500  # number of keys in one SQL query


@dataclass(frozen=True)
class FeatureRecord:
    """The location of the features of one source: data file, byte offset and number of parts."""

    file: str
    offset: int
    num_parts: int
    crc32: int  # checksum of the pooled features (mean and maximum)


@dataclass(frozen=True)
class FileRecord:
    """The state of a file (`file_state`) when the file was last hashed, and the SHA-256 of its bytes."""

    state: str
    content_hash: str

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return int(self.state.split()[0])


class Cache:
    """A folder with one feature store for each encoder, a database of file hashes, and evaluated Python data."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder}: is a file; the cache must be a folder")

    @staticmethod
    def default() -> Cache:
        """Return the user's cache: $TRIPTYCH_CACHE, or `triptych` in the system's cache folder."""
        return Cache(os.environ.get("TRIPTYCH_CACHE") or platformdirs.user_cache_path("triptych", appauthor=False))

    def feature_store(self, encoder: Encoder) -> FeatureStore:
        """Open the feature store of an encoder. Other settings, weights, backends or versions use other stores."""
        name, title = f"{type(encoder).__name__.lower()}-{fingerprint_encoder(encoder)}", type(encoder).__name__
        if encoder.backend:
            name, title = f"{name}-{encoder.backend.name}", f"{title} ({encoder.backend.name})"
        return FeatureStore(self.folder / name, encoder.feature_dim, f"{title}: {encoder.origin}")

    def content_keys(self, sources: Sequence[Source]) -> list[bytes | MediaError]:
        """Return a key for each source, derived from its bytes or text. Unreadable files give a MediaError instead."""
        hashes: dict[Path, str | MediaError] = {}
        paths = dict.fromkeys(source.content for source in sources if isinstance(source.content, Path))
        if paths:
            with _open_database(self.folder / "files.sqlite", CREATE_FILES) as connection:
                for i, path in enumerate(paths):
                    hashes[path] = _hash_file(connection, path)
                    if i % SQL_BATCH == 0:
                        connection.commit()  # an open transaction blocks other processes
                connection.commit()
        digests = (hashes[s.content] if isinstance(s.content, Path) else f"text {s.content}" for s in sources)
        pairs = zip(sources, digests, strict=True)
        return [digest if isinstance(digest, MediaError) else content_key(source, digest) for source, digest in pairs]

    def lookup_file(self, path: Path) -> FileRecord | None:
        """Return the recorded state and hash of a file, or None if there is no record. The cache is not changed."""
        uri = f"{(self.folder / 'files.sqlite').absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
                row = connection.execute("select state, hash from files where path = ?", (_path_key(path),)).fetchone()
        except sqlite3.Error:  # the database is missing or unreadable: the caller hashes the file instead
            return None
        return FileRecord(*row) if row else None

    def list_stores(self) -> list[tuple[str, int, int]]:
        """Return (description, number of items, bytes) of each feature store, and of other files."""
        stores = []
        for metadata_file in sorted(self.folder.glob(f"*/{METADATA_FILE}")):
            folder = metadata_file.parent
            with _open_database(folder / INDEX_FILE, CREATE_RECORDS) as index:
                (count,) = index.execute("select count(*) from records").fetchone()
            description = json.loads(metadata_file.read_text(encoding="utf-8"))["about"]
            stores.append((description, count, sum(file.stat().st_size for file in folder.iterdir())))
        for name, title in ((TABLES_FOLDER, "media files of Python data"), (ONNX_FOLDER, "ONNX graphs")):
            if files := [path for path in (self.folder / name).rglob("*") if path.is_file()]:
                stores.append((title, len(files), sum(path.stat().st_size for path in files)))
        return stores

    def clear(self) -> None:
        """Delete all cached features, file hashes, media files and ONNX graphs."""
        for name in (TABLES_FOLDER, ONNX_FOLDER):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for metadata_file in self.folder.glob(f"*/{METADATA_FILE}"):
            shutil.rmtree(metadata_file.parent)
        for file in self.folder.glob("files.sqlite*"):
            file.unlink(missing_ok=True)


class FeatureStore:
    """The features of one encoder. Each key has parts in float16, and the mean and maximum of the parts in float32."""

    def __init__(self, folder: Path, feature_dim: int, description: str) -> None:
        self.folder, self.feature_dim = folder, feature_dim
        self._data_file = f"{secrets.token_hex(8)}.features"  # written by this process only
        self._maps: dict[str, np.memmap] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            metadata_file = folder / METADATA_FILE
            if not metadata_file.exists():
                metadata = {"about": description, "feature_dim": feature_dim, "format_version": FORMAT_VERSION}
                write_text(metadata_file, json.dumps(metadata))
        except OSError as error:
            raise _explain_write_error(folder, error) from error

    def find(self, keys: Iterable[bytes]) -> dict[bytes, FeatureRecord]:
        """Return the records of those keys that are stored; omit records in truncated data files."""
        unique_keys, records = list(dict.fromkeys(keys)), dict[bytes, FeatureRecord]()
        with _open_database(self.folder / INDEX_FILE, CREATE_RECORDS) as index:
            for first in range(0, len(unique_keys), SQL_BATCH):
                batch = unique_keys[first : first + SQL_BATCH]
                placeholders = ",".join("?" * len(batch))
                query = f"select key, file, start, parts, crc from records where key in ({placeholders})"  # noqa: S608
                rows = index.execute(query, batch)
                records |= {key: FeatureRecord(*rest) for key, *rest in rows}
        paths = {record.file: self.folder / record.file for record in records.values()}
        sizes = {name: path.stat().st_size if path.is_file() else 0 for name, path in paths.items()}
        # A record has two float32 vectors, the mean and the maximum, and a float16 vector for each part.
        ends = {key: r.offset + self.feature_dim * (8 + 2 * r.num_parts) for key, r in records.items()}
        return {key: record for key, record in records.items() if ends[key] <= sizes[record.file]}

    def add(self, items: Sequence[tuple[bytes, Tensor]]) -> None:
        """Store the parts (P, feature_dim) of each key: sync the parts to disk first, then add them to the index."""
        rows, path = [], self.folder / self._data_file
        try:
            with path.open("ab") as file:
                for key, parts in items:
                    pooled = torch.stack([parts.mean(dim=0), parts.amax(dim=0)]).float().numpy().tobytes()
                    rows.append((key, self._data_file, file.tell(), len(parts), zlib.crc32(pooled)))
                    file.write(pooled + to_float16(parts).numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _explain_write_error(path, error) from error
        with _open_database(self.folder / INDEX_FILE, CREATE_RECORDS) as index, index:
            index.executemany("insert or replace into records values (?, ?, ?, ?, ?)", rows)
        self._maps.pop(self._data_file, None)

    def read_pooled(self, record: FeatureRecord) -> np.ndarray | None:
        """Return the mean and maximum (2, feature_dim) of a record's parts; None if the checksum does not match."""
        raw = self._memory_map(record.file)[record.offset : record.offset + 8 * self.feature_dim]
        return raw.view(np.float32).reshape(2, self.feature_dim) if zlib.crc32(raw.tobytes()) == record.crc32 else None

    def read_parts(self, record: FeatureRecord) -> np.ndarray:
        """Return a memory-mapped view of a record's parts (P, feature_dim) in float16."""
        first = record.offset + 8 * self.feature_dim
        raw = self._memory_map(record.file)[first : first + 2 * self.feature_dim * record.num_parts]
        return raw.view(np.float16).reshape(record.num_parts, self.feature_dim)

    def _memory_map(self, file: str) -> np.memmap:
        if file not in self._maps:
            self._maps[file] = np.memmap(self.folder / file, np.uint8, "r")
        return self._maps[file]


def resolve_cache(setting: Cache | str) -> Cache | None:
    """Return the cache for a setting: the path of a folder, "" for the default cache, or "off" for no cache."""
    if isinstance(setting, Cache):
        return setting
    return None if setting == "off" else Cache(setting) if setting else Cache.default()


def to_float16(parts: Tensor) -> Tensor:
    """Convert parts to float16; clamp values to the range of float16."""
    max_value = torch.finfo(torch.float16).max
    return parts.clamp(-max_value, max_value).to(torch.float16)


_FINGERPRINTS: WeakKeyDictionary[Encoder, str] = WeakKeyDictionary()


def fingerprint_encoder(encoder: Encoder) -> str:
    """Return a hash of everything that determines an encoder's features: settings, weights and extra files.

    The hash of a frozen encoder is computed once, because its weights do not change.
    """
    if encoder.frozen and encoder in _FINGERPRINTS:
        return _FINGERPRINTS[encoder]
    cls = type(encoder)
    names = [name for name in inspect.signature(cls).parameters if name != "frozen"]
    if missing := [name for name in names if not hasattr(encoder, name)]:
        problem = f"{cls.__qualname__}: these arguments of the constructor are not stored as attributes"
        raise PluginError(f"{problem}: {', '.join(missing)}; the cache needs the settings of an encoder")
    settings = {name: getattr(encoder, name) for name in names}
    is_plugin = cls.__module__.partition(".")[0] != "triptych"  # classes of two packages may have the same name
    class_name = f"{cls.__module__}:{cls.__qualname__}" if is_plugin else cls.__name__
    header = [FORMAT_VERSION, class_name, settings, encoder.extra_files()]
    header += [dict(encoder.prompts)] if encoder.prompts else []
    digest = hashlib.sha256(json.dumps(header, default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    _FINGERPRINTS[encoder] = digest.hexdigest()[:16]
    return _FINGERPRINTS[encoder]


CREATE_RECORDS = (
    "create table if not exists records "
    "(key blob primary key, file text, start integer, parts integer, crc integer) without rowid"
)
CREATE_FILES = "create table if not exists files (path text primary key, state text, hash text) without rowid"


@contextmanager
def _open_database(path: Path, create_table: str) -> Iterator[sqlite3.Connection]:
    """Open a short-lived connection; create the table if it does not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT)
    except OSError as error:
        raise _explain_write_error(path, error) from error
    except sqlite3.Error as error:
        raise _explain_sqlite_error(path, error) from error
    try:
        _use_write_ahead_log(connection)
        connection.execute("pragma synchronous = normal")
        connection.execute(create_table)
        yield connection
    except sqlite3.Error as error:
        raise _explain_sqlite_error(path, error) from error
    finally:
        connection.close()


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. If two processes switch at the same time, SQLite fails instead of waiting, so retry."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


# SQLite returns SQLITE_ERROR if the file has other tables.
CORRUPTION_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
OTHER_FOLDER_HINT = "or set TRIPTYCH_CACHE to another folder"
PROBE_BYTES = 65_536  # size of the test file that reveals a full or read-only disk


def _explain_sqlite_error(path: Path, error: sqlite3.Error) -> UsageError:
    """Translate an SQLite error to a UsageError. Only errors in the database file are reported as damage."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary result code
    if code in CORRUPTION_CODES:
        return UsageError(f"{path}: the cache is damaged ({error}); delete its folder to compute the features again")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return UsageError(f"{path}: another process keeps writing to the cache; try again, {OTHER_FOLDER_HINT}")
    try:  # for a full disk, SQLite may report "disk I/O error": a test file shows the actual error
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        return _explain_write_error(path, cause)
    return UsageError(f"{path}: the cache cannot be read or written ({error}); check the disk, {OTHER_FOLDER_HINT}")


def _explain_write_error(path: Path, error: OSError) -> UsageError:
    problem = f"{path}: the cache cannot be written ({error.strerror})"
    return UsageError(f"{problem}; {suggest_remedy(error.errno or 0)}, {OTHER_FOLDER_HINT}")


def file_state(status: os.stat_result) -> str:
    """Return size, mtime, ctime and inode of a file as text. A file with an unchanged state is not hashed again."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def content_key(source: Source, content_hash: str) -> bytes:
    """Return the cache key of a source. `content_hash` is the SHA-256 of its file or, for a text, the text itself."""
    identity = [source.modality, content_hash, source.start, source.end]
    identity += [source.prompt_name] if source.prompt_name else []
    return hashlib.sha256(json.dumps(identity).encode("utf-8", "surrogatepass")).digest()[:16]


def _hash_file(connection: sqlite3.Connection, path: Path) -> str | MediaError:
    """Return the SHA-256 of a file; hash the file again only if `file_state` has changed."""
    try:
        path_key, state = _path_key(path), file_state(path.stat())
        query = "select hash from files where path = ? and state = ?"
        if row := connection.execute(query, (path_key, state)).fetchone():
            return row[0]
        with path.open("rb") as file:
            state = file_state(os.fstat(file.fileno()))  # of the open file: the path may name another file by now
            content_hash = hashlib.file_digest(file, "sha256").hexdigest()
            is_unchanged = file_state(os.fstat(file.fileno())) == state
    except OSError as error:
        return MediaError(f"{path}: cannot be read ({error.strerror})")
    if is_unchanged:  # a hash of a file that was changed during hashing is not stored
        connection.execute("insert or replace into files values (?, ?, ?)", (path_key, state, content_hash))
    return content_hash


def _path_key(path: Path) -> str:
    """Return a path as it is stored in the database of file hashes."""
    return str(path.absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
