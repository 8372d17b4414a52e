"""Convert panics of Rust libraries into Python exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PYO3_MODULE = "pyo3_runtime"  # the module of PanicException, which Python cannot import


@contextmanager
def convert_rust_panics() -> Iterator[None]:
    """Convert a Rust panic into a RuntimeError, because `except Exception` does not catch a panic."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PYO3_MODULE:
            raise
        raise RuntimeError(str(error)) from error
