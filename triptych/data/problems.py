"""What is wrong with a manifest, as plain data: one `Problem` each, grouped by kind so that thousands stay readable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One finding. An error means the row cannot be used; a warning means it can, but somebody should look."""

    severity: Severity
    kind: str  # a short key such as "missing file": problems of one kind are shown together
    row: int | None
    column: str | None
    message: str

    def __str__(self) -> str:
        if self.row is None:
            return self.message  # says itself which column it is about
        column = "" if self.column is None else f", {shown(self.column)}"
        return f"row {self.row}{column}: {self.message}"


class UnfitError(Exception):
    """A cell cannot be used. Raised where the cell is read, caught where its row and column are known."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def shown(value: object, limit: int = 120) -> str:
    """A cell's content as it may stand in a message: on one line, not too long, without control characters."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit]}…"
    return text if text.isprintable() else repr(text)[1:-1]


def group_by_kind(problems: Iterable[Problem], first: int = 5) -> list[dict[str, Any]]:
    """Errors before warnings, each kind once: its total, its first few problems, and how many more there are."""
    groups: dict[tuple[Severity, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.severity, problem.kind), []).append(problem)
    return [
        {
            "severity": severity,
            "kind": kind,
            "total": len(members),
            "first": [str(problem) for problem in members[:first]],
            "more": max(0, len(members) - first),
        }
        for (severity, kind), members in sorted(groups.items(), key=lambda group: group[0][0])
    ]
