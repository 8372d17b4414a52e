"""A reference case: inputs, expected values, and the differences of triptych's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.interfaces import Features, Pair, Similarity
from triptych.similarities.cosine import Cosine

MINUS_INFINITY = -1e300  # represents -inf in the files


class CaseError(Exception):
    """A case cannot be read, or lacks an array that its family needs."""


class Case:
    """Inputs and expected values of one run of an original implementation; collects all differences."""

    def __init__(self, name: str, config: dict[str, Any], tolerance: float, arrays: dict[str, np.ndarray]) -> None:
        self.name, self.config, self.tolerance, self.arrays = name, config, tolerance, arrays
        self.checked_keys: set[str] = set()
        self.max_error = 0.0
        self.problems: list[str] = []

    @classmethod
    def load(cls, folder: Path, name: str) -> Case:
        """Load NAME.json and NAME.npz from a folder, or raise CaseError."""
        try:
            metadata = json.loads((folder / f"{name}.json").read_text())
            with (folder / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
            return cls(name, metadata["config"], float(metadata["tolerance_rtol"]), arrays)
        except Exception as error:
            raise CaseError(f"cannot be read: {type(error).__name__}: {error}") from error

    def has_array(self, name: str) -> bool:
        """Return whether the case has this array (full name)."""
        return name in self.arrays

    def list_suffixes(self, prefix: str) -> list[str]:
        """Return what follows `start` in the names of the arrays."""
        return [key.removeprefix(prefix) for key in self.arrays if key.startswith(prefix)]

    def array(self, key: str) -> Tensor:
        """Return an array by its full name, as float64 or int64."""
        if key not in self.arrays:
            raise CaseError(f"has no array {key}; it has {', '.join(self.arrays)}")
        tensor = torch.from_numpy(np.array(self.arrays[key]))
        return tensor.double() if tensor.is_floating_point() else tensor.long()

    def input_tensor(self, name: str) -> Tensor:
        """Return an input."""
        return self.array(f"in__{name}")

    def input_with_grad(self, name: str) -> Tensor:
        """Return an input that requires gradients."""
        return self.input_tensor(name).requires_grad_()

    def constant(self, name: str) -> float:
        """Return a constant from the arrays or the configuration."""
        value = self.input_tensor(name).item() if self.has_array(f"in__{name}") else self.config.get(name)
        if not isinstance(value, int | float):
            raise CaseError(f"has no number {name}")
        return float(value)

    def check_value(self, name: str, actual: Tensor | float, rtol: float | None = None) -> None:
        """Compare a value with out__NAME."""
        self.checked_keys.add(f"out__{name}")
        self.check_close(f"out__{name}", actual, self.array(f"out__{name}"), self.tolerance if rtol is None else rtol)

    def check_gradient(self, name: str, actual: Tensor, rtol: float | None = None) -> None:
        """Compare a gradient with grad__NAME; default tolerance: 100 times that of values."""
        self.checked_keys.add(f"grad__{name}")
        self.check_close(
            f"grad__{name}", actual, self.array(f"grad__{name}"), self.tolerance * 100 if rtol is None else rtol
        )

    def check_gradients(self, loss: Tensor, inputs: dict[str, Tensor], rtol: float | None = None) -> None:
        """Compare the gradients of a loss with grad__NAME of each input."""
        actual = torch.autograd.grad(loss, list(inputs.values()), retain_graph=True, allow_unused=True)
        for (name, leaf), gradient in zip(inputs.items(), actual, strict=True):
            self.check_gradient(name, torch.zeros_like(leaf) if gradient is None else gradient, rtol)

    def skip(self, *keys: str) -> None:
        """Skip arrays that describe the run of the original (iteration counts), not its result."""
        self.checked_keys |= set(keys)

    def check_close(self, label: str, actual: Tensor | float, expected: Tensor | float, rtol: float) -> None:
        """Record the difference relative to the largest expected value; a problem if above the tolerance."""
        difference = max_relative_error(actual, expected)
        self.max_error = max(self.max_error, difference)
        if not difference <= rtol:
            self.problems.append(f"{label}: off by {difference:.2e}, allowed {rtol:.1e}")

    def check_condition(self, label: str, condition: bool) -> None:
        """Check a condition that explains why the original and triptych agree or differ."""
        if not condition:
            self.problems.append(f"{label}: does not hold")

    def check_complete(self) -> None:
        """Check that every expected value was compared."""
        unchecked = [key for key in self.arrays if not key.startswith("in__") and key not in self.checked_keys]
        if unchecked:
            self.problems.append(f"not checked: {', '.join(unchecked)}")
        if not self.checked_keys:
            self.problems.append("holds no figures")


def max_relative_error(actual: Tensor | float, expected: Tensor | float) -> float:
    """Return the largest difference over the largest expected value (or 1); inf if shapes or NaN differ."""
    x, y = (torch.as_tensor(v, dtype=torch.float64).detach().clone() for v in (actual, expected))
    if x.shape != y.shape:
        return float("inf")
    for side in (x, y):
        side[side <= MINUS_INFINITY] = -torch.inf
    masked = y == -torch.inf
    if not torch.equal(masked, x == -torch.inf) or not torch.isfinite(x[~masked]).all():
        return float("inf")
    x, y = x[~masked], y[~masked]
    if not len(x):
        return 0.0
    largest = float(y.abs().max())
    return float((x - y).abs().max()) / (largest if largest > 1e-12 else 1.0)


def is_different(first: Tensor | float, second: Tensor | float, rtol: float) -> bool:
    """Return whether two values differ by more than rounding."""
    return max_relative_error(first, second) > rtol


def make_features(embedding: Tensor) -> Features:
    """Return features of embeddings (N, D) without further parts."""
    return Features(embedding, embedding[:, None], torch.ones(len(embedding), 1, dtype=torch.bool))


def make_features_from_parts(parts: Tensor, mask: Tensor | None = None) -> Features:
    """Return features of parts (N, L, D); the embedding is their mean, which the checks do not read."""
    mask = torch.ones(parts.shape[:2], dtype=torch.bool) if mask is None else mask
    return Features(parts.mean(dim=1), parts, mask)


def make_pair(a: Features, b: Features, labels: Tensor | None = None, similarity: Similarity | None = None) -> Pair:
    """Return a pair: rows with the same label are positives; default: row i of a and row i of b."""
    labels = torch.arange(len(a.embedding)) if labels is None else labels
    return Pair(a, b, labels.unique(return_inverse=True)[1], similarity or Cosine())


def total_loss(terms: dict[str, Tensor]) -> Tensor:
    """Return the sum of the terms."""
    return torch.stack(list(terms.values())).sum()
