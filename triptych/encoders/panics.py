"""Panics of libraries that are written in Rust, as ordinary errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

MODULE = "pyo3_runtime"  # of the PanicException; nothing can be imported from it


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic, which is no Exception and would end a thread or the program, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != MODULE:
            raise
        raise RuntimeError(str(error)) from error
