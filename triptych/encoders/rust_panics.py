"""Panics of libraries that are written in Rust, as ordinary errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PYO3_MODULE = "pyo3_runtime"  # of the PanicException; nothing can be imported from it


@contextmanager
def convert_rust_panics() -> Iterator[None]:
    """Turn a panic, which is no Exception and would end a thread or the program, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PYO3_MODULE:
            raise
        raise RuntimeError(str(error)) from error
