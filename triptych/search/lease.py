"""Exclusive write access to a collection.

A collection in a folder has a lock file, which the operating system releases when the process ends. A collection on an
object store has a lease: an object lease/NUMBER, created on condition that it does not exist. The process that created
the highest number holds the lease and renews the object regularly. If the object has not been renewed for
LEASE_SECONDS, by the clock of the store, another process may create the next number.
"""

import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from triptych.errors import CollectionError
from triptych.files import lock, suggest_remedy

LOCK_FILE, LEASE_PREFIX, PROBE_PREFIX = "indexing.lock", "lease", "lease-probe"
LEASE_SECONDS = 60.0  # the lease of a killed or disconnected process expires after this time
RENEWALS_PER_LEASE = 4  # number of times that a process renews its lease within LEASE_SECONDS


@dataclass(frozen=True)
class WriteAccess:
    """Write access to a collection."""

    check: Callable[[], None] = lambda: None  # raises CollectionError if another process has taken over the lease
    is_takeover: bool = False  # True if the previous lease expired; the previous holder may still be running


@contextmanager
def acquire_write_access(uri: str) -> Iterator[WriteAccess]:
    """Hold write access to a collection during the block. Raise CollectionError if another process holds it."""
    folder = local_folder(uri)
    if folder is not None:
        with _lock_folder(uri, folder) as access:
            yield access
    elif uri.startswith("memory://"):  # other processes cannot access the collection
        yield WriteAccess()
    else:
        lease = Lease(uri)
        lease.acquire()
        try:
            yield WriteAccess(lease.check, lease.is_takeover)
        finally:
            lease.release()


def local_folder(uri: str) -> Path | None:
    """Return the folder of a URI; None if the URI is on an object store."""
    if uri.startswith("file://"):
        return Path(url2pathname(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


@contextmanager
def _lock_folder(uri: str, folder: Path) -> Iterator[WriteAccess]:
    path = folder / LOCK_FILE
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_acquired = stack.enter_context(lock(path))
        except OSError as error:
            raise CollectionError(
                f"{uri}: the folder cannot be written ({error.strerror}); {suggest_remedy(error.errno or 0)}, "
                "or give another folder"
            ) from error
        if not is_acquired:
            holder = "another process"
            with suppress(OSError, ValueError):  # on Windows, locked files cannot be read
                holder = path.read_text(encoding="utf-8") or holder
            raise CollectionError(
                f"{uri}: {holder} is indexing into this collection; wait until that process has ended"
            )
        with suppress(OSError):
            path.write_text(_describe_process(), encoding="utf-8")
        yield WriteAccess()


@dataclass(frozen=True)
class _LeaseRecord:
    """The content of the lease object with the highest number."""

    generation: int
    token: str
    holder: str
    is_released: bool
    renewed_at: datetime  # by the clock of the store


class Lease:
    """A lease on a collection on an object store.

    Like LanceDB, a lease requires that the store supports `If-None-Match: *`. `acquire` first checks the support.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self.is_takeover = uri, False
        self._token, self._generation = secrets.token_hex(8), 0
        self._stop_event = threading.Event()
        self._renewal_thread = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        try:
            self._store: Any = from_url(uri)
        except (BaseError, ValueError) as error:
            raise CollectionError(
                f"{uri}: a collection at this URI can be searched, but not changed ({summarise_store_error(error)}); "
                "give a folder, or a URI that starts with s3://, gs:// or az://"
            ) from error

    def acquire(self) -> None:
        """Acquire the lease and renew it in the background. Raise CollectionError if another process holds it."""
        with self._translate_errors():
            now = self._check_conditional_writes()
            current = self._read_current()
            if current is not None and not current.is_released:
                age = (now - current.renewed_at).total_seconds()
                if age < LEASE_SECONDS:
                    raise CollectionError(self._format_conflict(current.holder, LEASE_SECONDS - age))
                self.is_takeover = True
            generation = current.generation + 1 if current else 1
            with suppress(AlreadyExistsError):  # by another process, or by this process if a response was lost
                obstore.put(self._store, _lease_path(generation), self._encode_record(), mode="create")
            winner = self._read_current()
            if winner is None or winner.token != self._token:
                holder = winner.holder if winner else "another process"
                raise CollectionError(self._format_conflict(holder, LEASE_SECONDS))
            self._generation = generation
            older = [path for path in self._list_lease_paths() if path < _lease_path(self._generation)]
            if older:
                obstore.delete(self._store, older)
        self._renewal_thread.start()

    def check(self) -> None:
        """Raise CollectionError if another process has taken over the lease."""
        with self._translate_errors():
            current = self._read_current()
        if current is None or current.token != self._token:
            holder = current.holder if current else "another process"
            raise CollectionError(
                f"{self.uri}: {holder} has taken over while this process was suspended or disconnected for more than "
                f"{LEASE_SECONDS:.0f} s; wait until {holder} has finished, then run the same command again: no stored "
                "items are lost"
            )

    def release(self) -> None:
        """Release the lease."""
        self._stop_event.set()
        self._renewal_thread.join()
        with suppress(BaseError, OSError):  # if this fails, the lease expires
            obstore.put(self._store, _lease_path(self._generation), self._encode_record(is_released=True))

    def _renew_until_stopped(self) -> None:
        while not self._stop_event.wait(LEASE_SECONDS / RENEWALS_PER_LEASE):
            # Errors are ignored: the next renewal may succeed, and the writer checks the lease before every commit.
            with suppress(BaseError, OSError, CollectionError):
                self.check()
                obstore.put(self._store, _lease_path(self._generation), self._encode_record())

    def _check_conditional_writes(self) -> datetime:
        """Return the current time of the store. Raise CollectionError if the store ignores conditional writes."""
        path = f"{PROBE_PREFIX}/{self._token}"
        with suppress(AlreadyExistsError):
            obstore.put(self._store, path, b"", mode="create")
        now = obstore.head(self._store, path)["last_modified"]
        try:
            obstore.put(self._store, path, b"", mode="create")
        except AlreadyExistsError:
            return now
        finally:
            obstore.delete(self._store, path)
        raise CollectionError(
            f"{self.uri}: this object store ignores conditional writes (If-None-Match), so two processes could "
            "overwrite each other's changes; the collection can be searched, but not changed: index into a folder, or "
            "into a store with conditional writes (Amazon S3, Google Cloud Storage, Azure, Cloudflare R2, MinIO)"
        )

    def _read_current(self) -> _LeaseRecord | None:
        while paths := self._list_lease_paths():
            newest = max(paths)
            with suppress(FileNotFoundError):  # deleted in the meantime by the holder of a newer lease
                response = obstore.get(self._store, newest)
                record = json.loads(bytes(response.bytes()))
                generation, renewed_at = int(newest.rpartition("/")[2]), response.meta["last_modified"]
                return _LeaseRecord(generation, record["token"], record["holder"], record["released"], renewed_at)
        return None

    def _list_lease_paths(self) -> list[str]:
        return [item["path"] for batch in obstore.list(self._store, LEASE_PREFIX) for item in batch]

    def _encode_record(self, is_released: bool = False) -> bytes:
        return json.dumps({"token": self._token, "holder": _describe_process(), "released": is_released}).encode()

    def _format_conflict(self, holder: str, seconds: float) -> str:
        return (
            f"{self.uri}: {holder} is indexing into this collection; wait until that process has ended. If the process "
            f"was killed, run this command again in {seconds:.0f} s, when its lease has expired"
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of the object store to a CollectionError that suggests a remedy."""
        try:
            yield
        except (BaseError, OSError, ValueError, KeyError, TypeError) as error:
            raise CollectionError(
                f"{self.uri}: the object store cannot be written ({summarise_store_error(error)}); check the URI, the "
                "write permission, and the credentials in the environment (such as AWS_ACCESS_KEY_ID)"
            ) from error


def summarise_store_error(error: BaseException) -> str:
    """Return the error code of an object store, or the beginning of the error text."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code.group(1) if code else " ".join(str(error).partition("Debug source")[0].split())[:200]


def _lease_path(generation: int) -> str:
    return f"{LEASE_PREFIX}/{generation:012d}"


def _describe_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
