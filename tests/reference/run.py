"""Check all cases of a folder by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.reference import attention, contrastive, metrics, transport, triplets
from tests.reference.case import Case, CaseError

VECTORS_FOLDER = Path(__file__).parent / "vectors"
FAMILIES: dict[str, Callable[[Case], None]] = {
    family: function
    for group in (contrastive, attention, triplets, transport, metrics)
    for family, function in group.FAMILIES.items()
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case; it passed if there are no problems."""

    name: str
    family: str
    max_error: float
    problems: tuple[str, ...]


def list_case_names(folder: Path) -> list[str]:
    """Return the names of the cases of a folder: every .npz or .json except the index."""
    case_names = {
        path.stem if path.suffix == ".json" else path.name.removesuffix(".npz") for path in _list_files(folder)
    }
    return sorted(case_names)


def _list_files(folder: Path) -> list[Path]:
    return [p for pattern in ("*.npz", "*.json") for p in folder.glob(pattern) if p.name != "INDEX.json"]


def find_family(name: str) -> str | None:
    """Return the longest family name that is a prefix of the name."""
    matching = [family for family in FAMILIES if name == family or name.startswith(f"{family}_")]
    return max(matching, key=len, default=None)


def check_case(folder: Path, name: str) -> Outcome:
    """Check one case."""
    family = find_family(name)
    if family is None:
        known_families = ", ".join(sorted(FAMILIES))
        return Outcome(name, "unknown", 0.0, (f"no family is known by this name; known: {known_families}",))
    try:
        case = Case.load(folder, name)
    except CaseError as error:
        return Outcome(name, family, 0.0, (str(error),))
    try:
        FAMILIES[family](case)
        case.check_complete()
    except Exception as error:  # an error fails this case, not the run
        case.problems.append(f"{type(error).__name__}: {error}")
    return Outcome(name, family, case.max_error, tuple(case.problems))


def check_folder(folder: Path) -> list[Outcome]:
    """Check all cases of a folder."""
    return [check_case(folder, name) for name in list_case_names(folder)]
