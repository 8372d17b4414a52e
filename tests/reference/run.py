"""Every case of a folder, by its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.reference import attention, contrastive, metrics, transport, triplets
from tests.reference.case import Case, CaseError

VECTORS = Path(__file__).parent / "vectors"
FAMILIES: dict[str, Callable[[Case], None]] = {
    family: function
    for group in (contrastive, attention, triplets, transport, metrics)
    for family, function in group.FAMILIES.items()
}


@dataclass(frozen=True)
class Outcome:
    """How one case went; no problems: passed."""

    name: str
    family: str
    worst: float
    problems: tuple[str, ...]


def names(folder: Path) -> list[str]:
    """The cases of a folder: whatever has an .npz or a .json, but the index."""
    found = {path.stem if path.suffix == ".json" else path.name.removesuffix(".npz") for path in _files(folder)}
    return sorted(found)


def _files(folder: Path) -> list[Path]:
    return [p for pattern in ("*.npz", "*.json") for p in folder.glob(pattern) if p.name != "INDEX.json"]


def family_of(name: str) -> str | None:
    """The longest family that the name begins with."""
    fitting = [family for family in FAMILIES if name == family or name.startswith(f"{family}_")]
    return max(fitting, key=len, default=None)


def check(folder: Path, name: str) -> Outcome:
    """One case against ours."""
    family = family_of(name)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        return Outcome(name, "unknown", 0.0, (f"no family is known by this name; known: {known}",))
    try:
        case = Case.load(folder, name)
    except CaseError as error:
        return Outcome(name, family, 0.0, (str(error),))
    try:
        FAMILIES[family](case)
        case.finish()
    except Exception as error:  # whatever a mechanism raises is a failure of this case, not of the run
        case.problems.append(f"{type(error).__name__}: {error}")
    return Outcome(name, family, case.worst, tuple(case.problems))


def check_folder(folder: Path) -> list[Outcome]:
    """Every case of the folder."""
    return [check(folder, name) for name in names(folder)]
