"""Run decoders in worker processes with limits on time and memory, so that crashes and hangs stay isolated.

A function marked `@decoder` decodes one file. By default a decoder runs in this process, and all its errors become a
MediaError that names the file. Within `pool.sandbox()`, a decoder runs in a worker process (`media/worker.py`) with the
same arguments and the same result. A worker that has read a malicious file may be compromised. Workers therefore reply
with arrays and JSON, which are validated here, and never with pickles.
"""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from triptych.errors import MediaError, TriptychError
from triptych.media import limits

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Reply = Any  # a NumPy array or a JSON value

HEADER = struct.Struct("<cBQQQ")  # tag, number of dimensions, shape
ERROR, JSON, SAMPLES, PIXELS = b"E", b"J", b"f", b"B"  # tags: message, JSON, float32, uint8
MAX_JSON_BYTES = 8_000_000  # enough for a text of 1 MB in which every character is escaped
MAX_ERROR_BYTES = 10_000
MAX_ARRAY_BYTES = 4 * limits.MAX_PIXELS
MAX_CALLS = 200  # a worker process is replaced after this many calls
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL", "HOME", "TMPDIR")

DECODERS: dict[str, Callable[..., Any]] = {}  # the keys are `module.function`
_active_pool: ContextVar[WorkerPool | None] = ContextVar("workers", default=None)


def decoder(
    validate: Callable[[Reply, Mapping[str, Any]], Result],
) -> Callable[[Callable[Concatenate[Path, Arguments], Result]], Callable[Concatenate[Path, Arguments], Result]]:
    """Mark a function as a decoder; its first argument must be the path of a file.

    `validate(reply, arguments)` converts a worker's reply into the function's result, or raises a ValueError.
    """

    def decorate(
        decode: Callable[Concatenate[Path, Arguments], Result],
    ) -> Callable[Concatenate[Path, Arguments], Result]:
        name = f"{decode.__module__.rpartition('.')[2]}.{decode.__name__}"
        decode_signature = signature(decode)

        @wraps(decode)
        def call(path: Path, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            pool = _active_pool.get()
            if pool is not None:
                bound = decode_signature.bind(path, *args, **kwargs)
                bound.apply_defaults()
                arguments = {name: value for name, value in bound.arguments.items() if name != "path"}
                reply = pool.call(name, path, arguments)
                try:
                    return validate(reply, arguments)
                except ValueError as error:
                    raise MediaError(f"{path}: invalid reply of the decoder ({error}); use another file") from error
            try:
                return decode(path, *args, **kwargs)
            except TriptychError:
                raise
            except MemoryError as error:
                raise MediaError(f"{path}: not enough memory to decode the file; use a smaller file") from error
            except Exception as error:  # decoders raise many types of exceptions on damaged data
                reason = f"{type(error).__name__}: {error}"[:200]
                raise MediaError(f"{path}: broken data ({reason}); replace or remove the file") from error

        DECODERS[name] = call
        return call

    return decorate


def validate_samples(reply: Reply, arguments: Mapping[str, Any]) -> np.ndarray:
    """Validate audio samples: float32, one channel, finite, no longer than requested."""
    if not (isinstance(reply, np.ndarray) and reply.dtype == np.float32 and reply.ndim == 1):
        raise ValueError("no samples")
    if not np.isfinite(reply).all():
        raise ValueError("samples with NaN or infinity")
    end = math.inf if arguments["end"] is None else arguments["end"]
    if len(reply) > (end - (arguments["start"] or 0.0)) * arguments["rate"] + 1:
        raise ValueError("more samples than requested")
    return reply


def validate_pixels(reply: Reply, arguments: Mapping[str, Any]) -> np.ndarray:  # noqa: ARG001 - the signature of validators
    """Validate RGB pixels: (height, width, 3) uint8."""
    if not (isinstance(reply, np.ndarray) and reply.dtype == np.uint8 and reply.ndim == 3 and reply.size):
        raise ValueError("no pixels")
    if reply.shape[2] != 3:
        raise ValueError("no RGB pixels")
    return reply


def validate_seconds(reply: Reply, arguments: Mapping[str, Any]) -> float:  # noqa: ARG001 - the signature of validators
    """Validate a time in seconds."""
    if isinstance(reply, bool) or not isinstance(reply, int | float) or not 0 <= reply < math.inf:
        raise ValueError("no number of seconds")
    return float(reply)


def validate_text(reply: Reply, arguments: Mapping[str, Any]) -> str:  # noqa: ARG001 - the signature of validators
    """Validate a text."""
    if not isinstance(reply, str):
        raise ValueError("no text")  # noqa: TRY004 - a ValueError, as for other replies
    return reply


class WorkerPool:
    """A pool of worker processes, started on demand and reused: at most one process for each calling thread."""

    def __init__(self, timeout: float, memory: int) -> None:
        """Limit each call to `timeout` seconds and each process to `memory` bytes of address space."""
        self.timeout, self.memory = timeout, memory
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def sandbox(self) -> Iterator[None]:
        """Run all decoders that this thread calls within the block in worker processes."""
        token = _active_pool.set(self)
        try:
            yield
        finally:
            _active_pool.reset(token)

    def call(self, name: str, path: Path, arguments: Mapping[str, Any]) -> Reply:
        """Return a decoder's reply for a file; raise a MediaError if the decoder fails, crashes or times out."""
        request = {"decoder": name, "path": str(path), "arguments": arguments, "timeout": self.timeout}
        worker = self._acquire() or _Worker(self.memory)
        try:
            reply = worker.send_request(json.dumps(request).encode() + b"\n", self.timeout)
        except TimeoutError:
            limit = f"not decoded within {self.timeout:g} s"
            raise MediaError(f"{path}: {limit}; use a shorter or smaller file") from None
        except (EOFError, ValueError, RecursionError, OSError) as error:
            raise MediaError(
                f"{path}: the decoder's process ended while decoding ({worker.describe_exit() or error}); "
                "the file is damaged or needs too much memory: use another file"
            ) from error
        finally:
            self._release(worker)
        if isinstance(reply, MediaError):
            raise reply
        return reply

    def close(self) -> None:
        """End all idle processes; busy processes end after their current call."""
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for worker in idle:
            worker.kill()

    def _acquire(self) -> _Worker | None:
        """Return an idle process that is alive; None if all processes are busy or dead."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.kill()
        return None

    def _release(self, worker: _Worker) -> None:
        with self._lock:
            if worker.is_usable and not self._is_closed:
                self._idle.append(worker)
                return
        worker.kill()


class _Worker:
    """One worker process. Requests are lines of JSON; replies are a header and raw bytes."""

    def __init__(self, memory: int) -> None:
        folder = str(Path(__file__).parents[2])
        # Only these environment variables are passed on: others may contain secrets.
        environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)]), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - our own module and a number
            [sys.executable, "-P", "-m", "triptych.media.worker", str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # output of decoders is untrusted
            env=environment,
        )
        self._stdin, self._stdout = cast(BinaryIO, self._process.stdin), cast(BufferedReader, self._process.stdout)
        self._calls = 0
        self.is_usable = True

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def send_request(self, request: bytes, timeout: float) -> Reply:
        """Return the reply, or a MediaError if decoding failed.

        If this raises TimeoutError, EOFError or ValueError, the process cannot be used again.
        """
        self._calls += 1
        self.is_usable = False
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            self._stdin.write(request)
            self._stdin.flush()
            reply = self._read_reply()
        except (EOFError, OSError):
            if expired.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            timer.join()
        self.is_usable = self._calls < MAX_CALLS and not expired.is_set()
        return reply

    def _read_reply(self) -> Reply:
        tag, dimensions, *lengths = HEADER.unpack(self._read_bytes(HEADER.size).tobytes())
        shape = tuple(lengths[:dimensions])
        if tag in {SAMPLES, PIXELS}:
            dtype = np.dtype(np.float32 if tag == SAMPLES else np.uint8)
            size = math.prod(shape) * dtype.itemsize
            if not 1 <= dimensions <= 3 or size > MAX_ARRAY_BYTES:
                raise ValueError(f"{size / 1e6:.0f} MB at once")
            return self._read_bytes(size).view(dtype).reshape(shape)
        max_bytes = {JSON: MAX_JSON_BYTES, ERROR: MAX_ERROR_BYTES}.get(tag, -1)
        if dimensions != 1 or shape[0] > max_bytes:
            raise ValueError("a malformed reply")
        content = self._read_bytes(shape[0]).tobytes().decode("utf-8")
        return MediaError(content) if tag == ERROR else json.loads(content)

    def _read_bytes(self, size: int) -> np.ndarray:
        """Read exactly `size` bytes."""
        data, offset = np.empty(size, np.uint8), 0
        while offset < size:
            count = self._stdout.readinto(data[offset:].data)
            if not count:
                raise EOFError
            offset += count
        return data

    def describe_exit(self) -> str:
        """Return the exit code or signal of the process; "" if the process is running."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        signal_names = {int(member): member.name for member in signal.Signals}
        return f"exit code {code}" if code >= 0 else signal_names.get(-code, f"signal {-code}")

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        self.is_usable = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):  # a broken pipe cannot write its buffered data
                pipe.close()
