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
from triptych.files import lock, remedy

LOCK, LEASES, PROBES = "indexing.lock", "lease", "lease-probe"
LEASE_SECONDS = 60.0  # how long a holder that is dead, or cut off, keeps others waiting
RENEWALS = 4  # within that time


@dataclass(frozen=True)
class WriteAccess:
    """The right to change a collection, as its holder sees it."""

    check: Callable[[], None] = lambda: None  # raises CollectionError once another process has taken over
    is_takeover: bool = False  # the holder before has not given it back: it may be alive, and about to write


@contextmanager
def write_access(place: str) -> Iterator[WriteAccess]:
    """Hold the right to change the collection in a place until the block ends; refuses where another process has it."""
    folder = local_folder(place)
    if folder is not None:
        with _folder_access(place, folder) as access:
            yield access
    elif place.startswith("memory://"):  # nobody else sees it
        yield WriteAccess()
    else:
        lease = Lease(place)
        lease.acquire()
        try:
            yield WriteAccess(lease.check, lease.is_takeover)
        finally:
            lease.release()


def local_folder(place: str) -> Path | None:
    """The folder a place means; None where it is on an object store."""
    if place.startswith("file://"):
        return Path(url2pathname(urlsplit(place).path))
    return None if "://" in place else Path(place)


@contextmanager
def _folder_access(place: str, folder: Path) -> Iterator[WriteAccess]:
    path = folder / LOCK
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = stack.enter_context(lock(path))
        except OSError as error:
            raise CollectionError(
                f"{place}: cannot be written ({error.strerror}); {remedy(error.errno or 0)}, or give another folder"
            ) from error
        if not is_ours:
            holder = "another process"
            with suppress(OSError, ValueError):  # Windows lets nobody read a locked file
                holder = path.read_text(encoding="utf-8") or holder
            raise CollectionError(f"{place}: {holder} is indexing into it; wait until it is done")
        with suppress(OSError):
            path.write_text(_this_process(), encoding="utf-8")
        yield WriteAccess()


@dataclass(frozen=True)
class _Holder:
    """The lease with the highest number."""

    number: int
    token: str
    name: str
    is_released: bool
    renewed: datetime  # by the store's clock


class Lease:
    """A lease on the collection at an address of an object store.

    It asks of the store only what LanceDB asks of it, too: to honour `If-None-Match: *`. That is tried out first.
    """

    def __init__(self, place: str) -> None:
        self.place, self.is_takeover = place, False
        self._token, self._number = secrets.token_hex(8), 0
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            self._store: Any = from_url(place)
        except (BaseError, ValueError) as error:
            raise CollectionError(
                f"{place}: a collection at such an address can be searched, but not written ({reason(error)}); give a "
                "folder, or an address that begins with s3://, gs:// or az://"
            ) from error

    def acquire(self) -> None:
        """Take the lease, and renew it from now on in the background; refuses where another process has it."""
        from obstore import delete, put
        from obstore.exceptions import AlreadyExistsError

        with self._reported():
            now = self._probe()
            before = self._highest()
            if before is not None and not before.is_released:
                age = (now - before.renewed).total_seconds()
                if age < LEASE_SECONDS:
                    raise CollectionError(self._refusal(before.name, LEASE_SECONDS - age))
                self.is_takeover = True
            number = before.number + 1 if before else 1
            with suppress(AlreadyExistsError):  # by another process, or by this one, whose answer was lost
                put(self._store, _path(number), self._record(), mode="create")
            winner = self._highest()
            if winner is None or winner.token != self._token:
                raise CollectionError(self._refusal(winner.name if winner else "another process", LEASE_SECONDS))
            self._number = number
            older = [path for path in self._paths() if path < _path(self._number)]
            if older:
                delete(self._store, older)
        self._renewing.start()

    def check(self) -> None:
        """See that no other process has taken over."""
        with self._reported():
            highest = self._highest()
        if highest is None or highest.token != self._token:
            other = highest.name if highest else "another process"
            raise CollectionError(
                f"{self.place}: {other} has taken over while this process was stopped or cut off for more than "
                f"{LEASE_SECONDS:.0f} s; what was stored before is kept: run the same command again when that is done"
            )

    def release(self) -> None:
        """Give the lease back."""
        from obstore import put
        from obstore.exceptions import BaseError

        self._ended.set()
        self._renewing.join()
        with suppress(BaseError, OSError):  # else it runs out by itself
            put(self._store, _path(self._number), self._record(is_released=True))

    def _renew(self) -> None:
        from obstore import put
        from obstore.exceptions import BaseError

        while not self._ended.wait(LEASE_SECONDS / RENEWALS):
            with suppress(BaseError, OSError, CollectionError):  # the next try may succeed; the writer checks by itself
                self.check()
                put(self._store, _path(self._number), self._record())

    def _probe(self) -> datetime:
        """The store's time; refuses a store on which two processes could both believe that they hold the lease."""
        from obstore import delete, head, put
        from obstore.exceptions import AlreadyExistsError

        path = f"{PROBES}/{self._token}"
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
            f"{self.place}: this object store ignores conditional writes (If-None-Match), so that processes could "
            "overwrite each other's changes; it can be searched, but not written: index into a folder, or into a store "
            "that honours them, such as Amazon S3, Google Cloud Storage, Azure, Cloudflare R2 or MinIO"
        )

    def _highest(self) -> _Holder | None:
        from obstore import get

        while paths := self._paths():
            newest = max(paths)
            with suppress(FileNotFoundError):  # a higher one has come since, and this one was removed
                answer = get(self._store, newest)
                record = json.loads(bytes(answer.bytes()))
                number, renewed = int(newest.rpartition("/")[2]), answer.meta["last_modified"]
                return _Holder(number, record["token"], record["holder"], record["released"], renewed)
        return None

    def _paths(self) -> list[str]:
        from obstore import list as list_objects

        return [item["path"] for batch in list_objects(self._store, LEASES) for item in batch]

    def _record(self, is_released: bool = False) -> bytes:
        return json.dumps({"token": self._token, "holder": _this_process(), "released": is_released}).encode()

    def _refusal(self, holder: str, seconds: float) -> str:
        return (
            f"{self.place}: {holder} is indexing into it; wait until it is done. If that process is dead, run this "
            f"again in {seconds:.0f} s: then its lease has run out"
        )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Errors of the object store, as one clear sentence."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError, KeyError, TypeError) as error:
            raise CollectionError(
                f"{self.place}: the object store cannot be written ({reason(error)}); check the address, the "
                "permission to write, and the variables with the credentials (such as AWS_ACCESS_KEY_ID)"
            ) from error


def reason(error: BaseException) -> str:
    """What an object store says of an error: its own code for it, or the beginning of the text."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code.group(1) if code else " ".join(str(error).partition("Debug source")[0].split())[:200]


def _path(number: int) -> str:
    return f"{LEASES}/{number:012d}"


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
