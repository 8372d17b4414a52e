"""The right to change a collection, which one process has at a time.

In a folder it is a lock file, which the system releases when its holder ends. On an object store it is a lease: an
object lease/NUMBER, created on condition that it does not exist yet. The highest number holds the collection. Its
holder renews the object; when it has not been renewed for LEASE_SECONDS, by the store's own clock, another process may
create the next number.
"""

from __future__ import annotations

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

from triptych.errors import CollectionError
from triptych.files import lock, suggest_remedy

LOCK_FILE, LEASE_PREFIX, PROBE_PREFIX = "indexing.lock", "lease", "lease-probe"
LEASE_SECONDS = 60.0  # how long a holder that is dead, or cut off, keeps others waiting
RENEWALS_PER_LEASE = 4  # within that time


@dataclass(frozen=True)
class WriteAccess:
    """The right to change a collection, as its holder sees it."""

    check: Callable[[], None] = lambda: None  # raises CollectionError once another process has taken over
    is_takeover: bool = False  # the holder before has not given it back: it may be alive, and about to write


@contextmanager
def acquire_write_access(uri: str) -> Iterator[WriteAccess]:
    """Hold the right to change the collection in a place until the block ends; refuses where another process has it."""
    folder = local_folder(uri)
    if folder is not None:
        with _lock_folder(uri, folder) as access:
            yield access
    elif uri.startswith("memory://"):  # nobody else sees it
        yield WriteAccess()
    else:
        lease = Lease(uri)
        lease.acquire()
        try:
            yield WriteAccess(lease.check, lease.is_takeover)
        finally:
            lease.release()


def local_folder(uri: str) -> Path | None:
    """The folder a place means; None where it is on an object store."""
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
                f"{uri}: cannot be written ({error.strerror}); {suggest_remedy(error.errno or 0)}, or give another folder"
            ) from error
        if not is_acquired:
            holder = "another process"
            with suppress(OSError, ValueError):  # Windows lets nobody read a locked file
                holder = path.read_text(encoding="utf-8") or holder
            raise CollectionError(f"{uri}: {holder} is indexing into it; wait until it is done")
        with suppress(OSError):
            path.write_text(_describe_process(), encoding="utf-8")
        yield WriteAccess()


@dataclass(frozen=True)
class _LeaseRecord:
    """The lease with the highest number."""

    generation: int
    token: str
    holder: str
    is_released: bool
    renewed_at: datetime  # by the store's clock


class Lease:
    """A lease on the collection at an address of an object store.

    It asks of the store only what LanceDB asks of it, too: to honour `If-None-Match: *`. That is tried out first.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self.is_takeover = uri, False
        self._token, self._generation = secrets.token_hex(8), 0
        self._stop_event = threading.Event()
        self._renewal_thread = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            self._store: Any = from_url(uri)
        except (BaseError, ValueError) as error:
            raise CollectionError(
                f"{uri}: a collection at such an address can be searched, but not written ({summarise_store_error(error)}); give a "
                "folder, or an address that begins with s3://, gs:// or az://"
            ) from error

    def acquire(self) -> None:
        """Take the lease, and renew it from now on in the background; refuses where another process has it."""
        from obstore import delete, put
        from obstore.exceptions import AlreadyExistsError

        with self._translate_errors():
            now = self._check_conditional_writes()
            current = self._read_current()
            if current is not None and not current.is_released:
                age = (now - current.renewed_at).total_seconds()
                if age < LEASE_SECONDS:
                    raise CollectionError(self._format_conflict(current.holder, LEASE_SECONDS - age))
                self.is_takeover = True
            generation = current.generation + 1 if current else 1
            with suppress(AlreadyExistsError):  # by another process, or by this one, whose answer was lost
                put(self._store, _lease_path(generation), self._encode_record(), mode="create")
            winner = self._read_current()
            if winner is None or winner.token != self._token:
                raise CollectionError(
                    self._format_conflict(winner.holder if winner else "another process", LEASE_SECONDS)
                )
            self._generation = generation
            older = [path for path in self._list_lease_paths() if path < _lease_path(self._generation)]
            if older:
                delete(self._store, older)
        self._renewal_thread.start()

    def check(self) -> None:
        """See that no other process has taken over."""
        with self._translate_errors():
            current = self._read_current()
        if current is None or current.token != self._token:
            holder = current.holder if current else "another process"
            raise CollectionError(
                f"{self.uri}: {holder} has taken over while this process was stopped or cut off for more than "
                f"{LEASE_SECONDS:.0f} s; what was stored before is kept: run the same command again when that is done"
            )

    def release(self) -> None:
        """Give the lease back."""
        from obstore import put
        from obstore.exceptions import BaseError

        self._stop_event.set()
        self._renewal_thread.join()
        with suppress(BaseError, OSError):  # else it runs out by itself
            put(self._store, _lease_path(self._generation), self._encode_record(is_released=True))

    def _renew_until_stopped(self) -> None:
        from obstore import put
        from obstore.exceptions import BaseError

        while not self._stop_event.wait(LEASE_SECONDS / RENEWALS_PER_LEASE):
            with suppress(BaseError, OSError, CollectionError):  # the next try may succeed; the writer checks by itself
                self.check()
                put(self._store, _lease_path(self._generation), self._encode_record())

    def _check_conditional_writes(self) -> datetime:
        """The store's time; refuses a store on which two processes could both believe that they hold the lease."""
        from obstore import delete, head, put
        from obstore.exceptions import AlreadyExistsError

        path = f"{PROBE_PREFIX}/{self._token}"
        with suppress(AlreadyExistsError):
            put(self._store, path, b"", mode="create")
        now = head(self._store, path)["last_modified"]
        try:
            put(self._store, path, b"", mode="create")
        except AlreadyExistsError:
            return now
        finally:
            delete(self._store, path)
        raise CollectionError(
            f"{self.uri}: this object store ignores conditional writes (If-None-Match), so that processes could "
            "overwrite each other's changes; it can be searched, but not written: index into a folder, or into a store "
            "that honours them, such as Amazon S3, Google Cloud Storage, Azure, Cloudflare R2 or MinIO"
        )

    def _read_current(self) -> _LeaseRecord | None:
        from obstore import get

        while paths := self._list_lease_paths():
            newest = max(paths)
            with suppress(FileNotFoundError):  # a higher one has come since, and this one was removed
                response = get(self._store, newest)
                record = json.loads(bytes(response.bytes()))
                generation, renewed_at = int(newest.rpartition("/")[2]), response.meta["last_modified"]
                return _LeaseRecord(generation, record["token"], record["holder"], record["released"], renewed_at)
        return None

    def _list_lease_paths(self) -> list[str]:
        from obstore import list as list_objects

        return [item["path"] for batch in list_objects(self._store, LEASE_PREFIX) for item in batch]

    def _encode_record(self, is_released: bool = False) -> bytes:
        return json.dumps({"token": self._token, "holder": _describe_process(), "released": is_released}).encode()

    def _format_conflict(self, holder: str, seconds: float) -> str:
        return (
            f"{self.uri}: {holder} is indexing into it; wait until it is done. If that process is dead, run this "
            f"again in {seconds:.0f} s: then its lease has run out"
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Errors of the object store, as one clear sentence."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError, KeyError, TypeError) as error:
            raise CollectionError(
                f"{self.uri}: the object store cannot be written ({summarise_store_error(error)}); check the address, the "
                "permission to write, and the variables with the credentials (such as AWS_ACCESS_KEY_ID)"
            ) from error


def summarise_store_error(error: BaseException) -> str:
    """What an object store says of an error: its own code for it, or the beginning of the text."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code.group(1) if code else " ".join(str(error).partition("Debug source")[0].split())[:200]


def _lease_path(generation: int) -> str:
    return f"{LEASE_PREFIX}/{generation:012d}"


def _describe_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
