"""Panics of Rust libraries as Python exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PYO3_MODULE = "pyo3_runtime"  # the module of PanicException; it cannot be imported


@contextmanager
def convert_rust_panics() -> Iterator[None]:
    """Convert a panic, which is not an Exception and would end the thread or the program, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PYO3_MODULE:
            raise
        raise RuntimeError(str(error)) from error
