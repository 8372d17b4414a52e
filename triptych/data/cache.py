"""Features of frozen encoders on disk: computed once for each content, read by memory map, safe for several processes.

A shelf holds the features of one encoder: files of numbers that only grow, one for each process that ever wrote, and
an SQLite index. Numbers reach the disk before the index names them, so a kill at any moment loses at most the batch
in hand and never leaves an entry that is not whole.
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
import torch
from torch import Tensor

from triptych.contracts import Encoder, Source
from triptych.errors import MediaError, UsageError
from triptych.files import remedy, write_text

FORM = 1  # of records, keys and fingerprints: another number is another shelf
INDEX, NOTE = "index.sqlite", "encoder.json"
PATIENCE = 60.0  # seconds to wait for another process that is writing
MANY = 500  # keys in one SQL question


@dataclass(frozen=True)
class Record:
    """Where the features of one thing lie: in which file of the shelf, from which byte, and how many parts."""

    file: str
    offset: int
    parts: int
    check: int  # CRC of mean and maximum


@dataclass(frozen=True)
class FileRecord:
    """The state of a file (`file_state`) when its content was last read, and the SHA-256 of that content."""

    state: str
    digest: str

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.state.split()[0])


class Cache:
    """A folder of shelves, and what is known of files' contents."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder}: is a file; give a folder for the cache")

    @staticmethod
    def default() -> Cache:
        """The cache of this user: TRIPTYCH_CACHE, or triptych/ where the system keeps caches."""
        named = os.environ.get("TRIPTYCH_CACHE")
        return Cache(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "triptych")

    def shelf(self, encoder: Encoder) -> Shelf:
        """The shelf of an encoder: another setting, weight or version is another shelf."""
        name = f"{type(encoder).__name__.lower()}-{fingerprint(encoder)}"
        return Shelf(self.folder / name, encoder.width, f"{type(encoder).__name__}: {encoder.origin}")

    def keys(self, sources: Sequence[Source]) -> list[bytes | MediaError]:
        """What names the content of each source, whatever its file is called; an error where it cannot be read."""
        hashes: dict[Path, str | MediaError] = {}
        paths = dict.fromkeys(source.content for source in sources if isinstance(source.content, Path))
        if paths:
            with _database(self.folder / "files.sqlite", FILES) as files:
                for i, path in enumerate(paths):
                    hashes[path] = _content(files, path)
                    if i % MANY == 0:
                        files.commit()  # other processes wait while a change is open
                files.commit()
        return [_key(source, hashes) for source in sources]

    def recorded(self, path: Path) -> FileRecord | None:
        """What is on record of a file since its content was last read; None where nothing is. Never writes."""
        database = self.folder / "files.sqlite"
        try:
            with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as files:
                row = files.execute("select state, hash from files where path = ?", (_place(path),)).fetchone()
        except sqlite3.Error:  # no cache yet, or one that cannot be read: the content can be read again
            return None
        return FileRecord(*row) if row else None

    def sizes(self) -> list[tuple[str, int, int]]:
        """Every shelf: what it is, how many things it holds, how many bytes."""
        found = []
        for note in sorted(self.folder.glob(f"*/{NOTE}")):
            folder = note.parent
            with _database(folder / INDEX, RECORDS) as index:
                (count,) = index.execute("select count(*) from records").fetchone()
            about = json.loads(note.read_text(encoding="utf-8"))["about"]
            found.append((about, count, sum(file.stat().st_size for file in folder.iterdir())))
        return found

    def clear(self) -> None:
        """Remove everything that was ever kept: it is computed again when it is needed."""
        for note in self.folder.glob(f"*/{NOTE}"):
            shutil.rmtree(note.parent)
        for file in self.folder.glob("files.sqlite*"):
            file.unlink(missing_ok=True)


class Shelf:
    """The features of one encoder: for each key the mean and maximum of its parts in float32, its parts in float16."""

    def __init__(self, folder: Path, width: int, about: str) -> None:
        self.folder, self.width = folder, width
        self._own = f"{secrets.token_hex(8)}.features"  # only this process writes to it
        self._maps: dict[str, np.memmap] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            note = folder / NOTE
            if not note.exists():
                write_text(note, json.dumps({"about": about, "width": width, "form": FORM}))
        except OSError as error:
            raise _cannot_be_written(folder, error) from error

    def find(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records there are of these keys; one whose file has been cut short does not count."""
        wanted, found = list(dict.fromkeys(keys)), dict[bytes, Record]()
        with _database(self.folder / INDEX, RECORDS) as index:
            for first in range(0, len(wanted), MANY):
                some = wanted[first : first + MANY]
                marks = ",".join("?" * len(some))
                rows = index.execute(f"select key, file, start, parts, crc from records where key in ({marks})", some)  # noqa: S608
                found |= {key: Record(*rest) for key, *rest in rows}
        sizes: dict[str, int] = {}
        for record in found.values():
            if record.file not in sizes:
                path = self.folder / record.file
                sizes[record.file] = path.stat().st_size if path.is_file() else 0
        return {k: r for k, r in found.items() if r.offset + self._bytes(r.parts) <= sizes[r.file]}

    def add(self, items: Sequence[tuple[bytes, Tensor]]) -> None:
        """Keep the parts (P, width) of some keys: first the numbers, then, when they are on the disk, their names."""
        rows, path = [], self.folder / self._own
        try:
            with path.open("ab") as file:
                for key, parts in items:
                    pooled = torch.stack([parts.mean(dim=0), parts.amax(dim=0)]).float().numpy().tobytes()
                    rows.append((key, self._own, file.tell(), len(parts), zlib.crc32(pooled)))
                    file.write(pooled + halved(parts).numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_be_written(path, error) from error
        with _database(self.folder / INDEX, RECORDS) as index, index:
            index.executemany("insert or replace into records values (?, ?, ?, ?, ?)", rows)
        self._maps.pop(self._own, None)

    def pooled(self, record: Record) -> np.ndarray | None:
        """Mean and maximum (2, width) of a thing's parts; None where they are damaged."""
        raw = self._raw(record.file)[record.offset : record.offset + 8 * self.width]
        return raw.view(np.float32).reshape(2, self.width) if zlib.crc32(raw.tobytes()) == record.check else None

    def parts(self, record: Record) -> np.ndarray:
        """The parts (P, width) in float16, not copied."""
        first = record.offset + 8 * self.width
        raw = self._raw(record.file)[first : first + 2 * self.width * record.parts]
        return raw.view(np.float16).reshape(record.parts, self.width)

    def _bytes(self, parts: int) -> int:
        return self.width * (8 + 2 * parts)

    def _raw(self, file: str) -> np.memmap:
        if file not in self._maps:
            self._maps[file] = np.memmap(self.folder / file, np.uint8, "r")
        return self._maps[file]


def cache_of(setting: Cache | str) -> Cache | None:
    """The cache that a recipe, an option or an argument names: a folder, "" for the user's own, "off" for none."""
    if isinstance(setting, Cache):
        return setting
    return None if setting == "off" else Cache(setting) if setting else Cache.default()


def halved(parts: Tensor) -> Tensor:
    """Parts as they are kept, in float16; what does not fit is cut to the largest that does."""
    most = torch.finfo(torch.float16).max
    return parts.clamp(-most, most).to(torch.float16)


_KNOWN: WeakKeyDictionary[Encoder, str] = WeakKeyDictionary()


def fingerprint(encoder: Encoder) -> str:
    """A hash of everything that decides an encoder's features: its settings, weights and files.

    Of a frozen encoder it is taken once: its weights stay, and there may be a hundred megabytes of them.
    """
    if not encoder.frozen:
        return _fingerprint(encoder)
    if encoder not in _KNOWN:
        _KNOWN[encoder] = _fingerprint(encoder)
    return _KNOWN[encoder]


def _fingerprint(encoder: Encoder) -> str:
    digest = hashlib.sha256()
    # Where the weights lie does not matter: the weights themselves follow.
    names = [name for name in inspect.signature(type(encoder)).parameters if name not in {"frozen", "weights"}]
    settings = {name: getattr(encoder, name) for name in names}
    digest.update(json.dumps([FORM, type(encoder).__name__, settings, encoder.files()], default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


RECORDS = (
    "create table if not exists records "
    "(key blob primary key, file text, start integer, parts integer, crc integer) without rowid"
)
FILES = "create table if not exists files (path text primary key, state text, hash text) without rowid"


@contextmanager
def _database(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """A connection for one piece of work; other processes may have theirs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=PATIENCE)
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    try:
        _use_write_ahead_log(connection)
        connection.execute("pragma synchronous = normal")
        connection.execute(table)
        yield connection
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    finally:
        connection.close()


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Change to the journal mode that lets others read; where two change at once, SQLite fails without waiting."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}  # the last: other tables than ours
ANOTHER = "or set TRIPTYCH_CACHE to another folder"
TRIAL = 65_536  # bytes


def _explained(path: Path, error: sqlite3.Error) -> UsageError:
    """What is wrong with an index and what to do; it is called damaged only where its content is."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the other bits say where it arose
    if code in DAMAGE:
        return UsageError(f"{path}: the cache is damaged ({error}); remove its folder: it is computed again")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return UsageError(f"{path}: another process is writing to the cache all the time; run this again, {ANOTHER}")
    try:  # SQLite says "disk I/O error" of a full disk, too: the system says what is the matter
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(TRIAL))
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        return _cannot_be_written(path, cause)
    return UsageError(f"{path}: the cache cannot be read or written ({error}); check the disk, {ANOTHER}")


def _cannot_be_written(path: Path, error: OSError) -> UsageError:
    why = f"{path}: the cache cannot be written ({error.strerror})"
    return UsageError(f"{why}; {remedy(error.errno or 0)}, {ANOTHER}")


def file_state(status: os.stat_result) -> str:
    """Size, times of change and inode of a file: while they stay, it is the same file with the same content."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def content_key(source: Source, digest: str) -> bytes:
    """What names the content of a source whose file has this SHA-256, or whose text is `digest`."""
    whole = json.dumps([source.modality, digest, source.start, source.end])
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).digest()[:16]


def _content(files: sqlite3.Connection, path: Path) -> str | MediaError:
    """The hash of a file's content; read anew only when the file system says that it may have changed."""
    try:
        place, state = _place(path), file_state(path.stat())
        known = files.execute("select hash from files where path = ? and state = ?", (place, state)).fetchone()
        if known:
            return known[0]
        with path.open("rb") as file:
            state = file_state(os.fstat(file.fileno()))  # of the file that is read, not of what has the name by now
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            is_same = file_state(os.fstat(file.fileno())) == state
    except OSError as error:
        return MediaError(f"{path}: cannot be read ({error.strerror})")
    if is_same:  # else it was being written to: which content belongs to which state is not known
        files.execute("insert or replace into files values (?, ?, ?)", (place, state, digest))
    return digest


def _place(path: Path) -> str:
    """A path as the index of files has it."""
    return str(path.absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _key(source: Source, hashes: dict[Path, str | MediaError]) -> bytes | MediaError:
    content = hashes[source.content] if isinstance(source.content, Path) else f"text {source.content}"
    return content if isinstance(content, MediaError) else content_key(source, content)
