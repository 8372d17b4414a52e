"""Decoders in worker processes, within limits of time and memory: one that crashes or never ends takes nobody with it.

A `@decoder` is a function of a file. Called as it is, it runs here, and whatever it raises becomes a MediaError that
names the file. Called within `workers.sandbox()`, it runs in a worker process (`media/worker.py`) with the same
arguments, and so with the same result. A worker that has read hostile bytes may be under a stranger's control: its
answers are plain arrays and JSON, checked here, and nothing of them is ever unpickled.
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
Reply = Any  # a NumPy array, or what JSON holds

HEADER = struct.Struct("<cBQQQ")  # what follows, its number of dimensions, their lengths
ERROR, JSON, SAMPLES, PIXELS = b"E", b"J", b"f", b"B"  # a message, JSON, float32, uint8
MAX_JSON_BYTES = 8_000_000  # bytes of JSON: a text of 1 MB, escaped
MAX_ERROR_BYTES = 10_000  # bytes
MAX_ARRAY_BYTES = 4 * limits.MAX_PIXELS  # bytes
MAX_CALLS = 200  # of one process; then a fresh one takes over
INHERITED_ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "LANG",
    "LC_ALL",
    "HOME",
    "TMPDIR",
)

DECODERS: dict[str, Callable[..., Any]] = {}  # by module and name, as workers look them up
_active_pool: ContextVar[WorkerPool | None] = ContextVar("workers", default=None)


def decoder(
    validate: Callable[[Reply, Mapping[str, Any]], Result],
) -> Callable[[Callable[Concatenate[Path, Arguments], Result]], Callable[Concatenate[Path, Arguments], Result]]:
    """Make a function of a file a decoder; `check` turns a worker's answer into its result, or raises ValueError.

    It is given the arguments of the call, too, by name.
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
                    raise MediaError(f"{path}: its decoder gave {error}; give another file") from error
            try:
                return decode(path, *args, **kwargs)
            except TriptychError:
                raise
            except MemoryError as error:
                raise MediaError(f"{path}: needs more memory than there is; give a smaller file") from error
            except Exception as error:  # a decoder may fail in any way at all on damaged data
                reason = f"{type(error).__name__}: {error}"[:200]
                raise MediaError(f"{path}: broken data ({reason}); replace the file or leave it out") from error

        DECODERS[name] = call
        return call

    return decorate


def validate_samples(reply: Reply, arguments: Mapping[str, Any]) -> np.ndarray:
    """An answer as sound: float32, one channel, finite, no longer than what was asked for."""
    if not (isinstance(reply, np.ndarray) and reply.dtype == np.float32 and reply.ndim == 1):
        raise ValueError("no samples")
    if not np.isfinite(reply).all():
        raise ValueError("samples that hold NaN or infinity")
    end = math.inf if arguments["end"] is None else arguments["end"]
    if len(reply) > (end - (arguments["start"] or 0.0)) * arguments["rate"] + 1:
        raise ValueError("more samples than were asked for")
    return reply


def validate_pixels(reply: Reply, arguments: Mapping[str, Any]) -> np.ndarray:  # noqa: ARG001 - as checks are called
    """An answer as RGB: (height, width, 3) uint8."""
    if not (isinstance(reply, np.ndarray) and reply.dtype == np.uint8 and reply.ndim == 3 and reply.size):
        raise ValueError("no pixels")
    if reply.shape[2] != 3:
        raise ValueError("no RGB pixels")
    return reply


def validate_seconds(reply: Reply, arguments: Mapping[str, Any]) -> float:  # noqa: ARG001 - as checks are called
    """An answer as a time in seconds."""
    if isinstance(reply, bool) or not isinstance(reply, int | float) or not 0 <= reply < math.inf:
        raise ValueError("no number of seconds")
    return float(reply)


def validate_text(reply: Reply, arguments: Mapping[str, Any]) -> str:  # noqa: ARG001 - as checks are called
    """An answer as text."""
    if not isinstance(reply, str):
        raise ValueError("no text")  # noqa: TRY004 - a wrong answer, not a wrong call
    return reply


class WorkerPool:
    """Worker processes: started where none is idle, so never more than the threads that ask; used again afterwards."""

    def __init__(self, timeout: float, memory: int) -> None:
        """Each call takes at most `deadline` seconds, each process at most `memory` bytes of address space."""
        self.timeout, self.memory = timeout, memory
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def sandbox(self) -> Iterator[None]:
        """Send every decoder that this thread calls in the block to a worker process."""
        token = _active_pool.set(self)
        try:
            yield
        finally:
            _active_pool.reset(token)

    def call(self, name: str, path: Path, arguments: Mapping[str, Any]) -> Reply:
        """What a decoder gives for a file; a MediaError, too, where its process ends or the time is over."""
        request = {"decoder": name, "path": str(path), "arguments": arguments, "timeout": self.timeout}
        worker = self._acquire() or _Worker(self.memory)
        try:
            reply = worker.send_request(json.dumps(request).encode() + b"\n", self.timeout)
        except TimeoutError:
            message = f"not decoded within {self.timeout:g} s; give a shorter or smaller file"
            raise MediaError(f"{path}: {message}") from None
        except (EOFError, ValueError, RecursionError, OSError) as error:
            raise MediaError(
                f"{path}: the decoder's process ended while it read this file ({worker.describe_exit() or error}); "
                "the file is damaged, or asks for too much: give another"
            ) from error
        finally:
            self._release(worker)
        if isinstance(reply, MediaError):
            raise reply
        return reply

    def close(self) -> None:
        """End every idle process; those at work end when they are done."""
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for worker in idle:
            worker.kill()

    def _acquire(self) -> _Worker | None:
        """A process that is idle and still there."""
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
    """One process: questions as lines of JSON, answers as a header and raw bytes."""

    def __init__(self, memory: int) -> None:
        folder = str(Path(__file__).parents[2])
        environment = {name: os.environ[name] for name in INHERITED_ENVIRONMENT if name in os.environ}  # and no secrets
        environment |= {"PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)]), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - this program, a module of ours and a number
            [sys.executable, "-P", "-m", "triptych.media.worker", str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # some decoders write to it, and what they write is a stranger's
            env=environment,
        )
        # A missing pipe is the type checker's worry alone: both were asked for.
        self._stdin, self._stdout = cast(BinaryIO, self._process.stdin), cast(BufferedReader, self._process.stdout)
        self._calls = 0
        self.is_usable = True

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send_request(self, request: bytes, timeout: float) -> Reply:
        """The answer, or a MediaError in its place; TimeoutError, EOFError or ValueError: the process is done for."""
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
            raise ValueError("an answer of no known form")
        content = self._read_bytes(shape[0]).tobytes().decode("utf-8")
        return MediaError(content) if tag == ERROR else json.loads(content)

    def _read_bytes(self, size: int) -> np.ndarray:
        """So many bytes."""
        data, offset = np.empty(size, np.uint8), 0
        while offset < size:
            count = self._stdout.readinto(data[offset:].data)
            if not count:
                raise EOFError
            offset += count
        return data

    def describe_exit(self) -> str:
        """How the process ended, in words; nothing where it runs on."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        if code >= 0:
            return f"exit code {code}"
        signal_names = {int(member): member.name for member in signal.Signals}
        return signal_names.get(-code, f"signal {-code}")

    def kill(self) -> None:
        """End the process at once."""
        self.is_usable = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):  # of what could not be written any more
                pipe.close()
