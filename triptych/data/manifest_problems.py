"""What is wrong with a manifest, as plain data: one `Problem` each, grouped by kind so that thousands stay readable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class ManifestProblem:
    """One finding. An error means the row cannot be used; a warning means it can, but somebody should look."""

    severity: Severity
    category: str  # a short key such as "missing file": problems of one kind are shown together
    row: int | None
    column: str | None
    message: str

    def __str__(self) -> str:
        if self.row is None:
            return self.message  # says itself which column it is about
        column = "" if self.column is None else f", {to_printable(self.column)}"
        return f"row {self.row}{column}: {self.message}"


class InvalidCellError(Exception):
    """A cell cannot be used. Raised where the cell is read, caught where its row and column are known."""

    def __init__(self, category: str, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


def to_printable(value: object, limit: int = 120) -> str:
    """A cell's content as it may stand in a message: on one line, not too long, without control characters."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit]}…"
    return text if text.isprintable() else repr(text)[1:-1]


def group_by_category(problems: Iterable[ManifestProblem], max_examples: int = 5) -> list[dict[str, Any]]:
    """Errors before warnings, each kind once: its total, its first few problems, and how many more there are."""
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
