"""Problems of a manifest as data, grouped by category for display."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class ManifestProblem:
    """One problem. An error makes its row unusable; a warning does not."""

    severity: Severity
    category: str  # a short key such as "missing file", by which problems are grouped
    row: int | None
    column: str | None
    message: str

    def __str__(self) -> str:
        if self.row is None:
            return self.message  # the message names the column
        column = "" if self.column is None else f", {to_printable(self.column)}"
        return f"row {self.row}{column}: {self.message}"


class InvalidCellError(Exception):
    """A cell is invalid. The caller that catches this exception adds the row and the column."""

    def __init__(self, category: str, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


def to_printable(value: object, limit: int = 120) -> str:
    """Format a cell for a message: on one line, truncated, without control characters."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit]}…"
    return text if text.isprintable() else repr(text)[1:-1]


def group_by_category(problems: Iterable[ManifestProblem], max_examples: int = 5) -> list[dict[str, Any]]:
    """Group problems by category, errors first. A category has a total, its first examples and the number of others."""
    groups: dict[tuple[Severity, str], list[ManifestProblem]] = {}
    for problem in problems:
        groups.setdefault((problem.severity, problem.category), []).append(problem)
    return [
        {
            "severity": severity,
            "category": category,
            "total": len(members),
            "examples": [str(problem) for problem in members[:max_examples]],
            "more": max(0, len(members) - max_examples),
        }
        for (severity, category), members in sorted(groups.items(), key=lambda group: group[0][0])
    ]
