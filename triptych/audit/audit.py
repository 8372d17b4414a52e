"""audit(): which pairs of a manifest are probably wrong, from end to end."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from triptych import checkpoint
from triptych.audit.decisions import write_decided
from triptych.audit.findings import Judged, Suspect, gather, suspects
from triptych.audit.fitting import fit, recipe_for, tidy
from triptych.audit.folds import part
from triptych.audit.judging import Arrays, judge, see
from triptych.audit.listing import write_scores, write_suspects
from triptych.audit.pairs import KINDS, Content, Kind, contents, kinds, pairs_of
from triptych.audit.review import decision_on, write_page
from triptych.audit.share import Share
from triptych.contracts import MODALITIES, Modality
from triptych.data import manifest
from triptych.data.cache import Cache, cache_of
from triptych.data.manifest import Row
from triptych.data.sources.draft import link
from triptych.errors import UsageError
from triptych.files import replacing, write_text
from triptych.progress import tell
from triptych.recipe import Recipe
from triptych.space import Space

FOLDS = 4
FORM = 2  # raise it when the same rows would be judged otherwise
SETTINGS, SUMMARY, PAGE = "settings.json", "audit.json", "review.html"
SUSPECTS, SCORES, CLEAN = "suspects.csv", "scores.csv", "clean.csv"
SPACES = "folds"


@dataclass(frozen=True)
class Audit:
    """What was found: by kind of pair the share of wrong ones, and every suspect."""

    folder: Path
    rows: Sequence[Row]
    judged: Mapping[Kind, Judged]
    suspects: list[Suspect]
    unreadable: list[str]

    @property
    def shares(self) -> dict[Kind, Share]:
        """The estimated share of wrong pairs of each kind."""
        return {kind: found.share for kind, found in self.judged.items()}


def audit(
    source: str | Path,
    folder: str | Path,
    space: str | Path | None = None,
    folds: int = FOLDS,
    recipe: str = "audit",
    changes: Sequence[str] = (),
    seed: int = 0,
    restart: bool = False,
    allow_outside: bool = False,
    show: bool = True,
) -> Audit:
    """Judge every pair of a manifest by a space that has not seen it, and write down what is suspected.

    The rows are parted into folds; for each, a space is trained on the rows of the others and judges it. With `space`,
    that one judges all of them: it should not have been trained on them. Interrupted, the same call goes on: a fold
    that was judged is not judged again, one in training goes on from its last epoch.
    """
    folder, table = Path(folder), manifest.read(source, allow_outside)
    rows, name = table.rows, identity(table.path)
    if not 2 <= folds <= 100:
        raise UsageError(f"--folds {folds}: allowed are 2 to 100")
    work = _prepared(table, space, recipe, changes, show)
    settings: dict[str, Any] = {"form": FORM, "audit": name, "folds": folds, "seed": seed}
    settings |= {"space": checkpoint.fingerprint(space)} if space else {"recipe": work.recipe.text()}
    _begin(folder, settings, restart)

    fold_of = (
        part(pairs_of(work.held, work.kinds, rows), folds, seed)
        if space is None
        else dict.fromkeys((row.id for row in rows), 0)
    )
    parts: dict[Kind, list[Arrays]] = {kind: [] for kind in work.kinds}
    unreadable: set[str] = set()
    for fold in sorted(set(fold_of.values())):
        mine = [i for i, row in enumerate(rows) if fold_of[row.id] == fold]
        found, reasons = work.fold(folder / SPACES / f"fold-{fold}", mine)
        unreadable |= set(reasons)
        for kind, arrays in found.items():
            parts[kind].append(arrays)
    judged = {kind: gather(some) for kind, some in parts.items() if some}
    result = Audit(folder, rows, judged, suspects(judged, rows), sorted(unreadable))
    _write(result, table, name, settings)
    return result


def identity(path: Path) -> str:
    """What names a manifest as it is now: decisions about it hold for nothing else."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class _Work:
    """What is judged, and by what: spaces of a recipe, or a space that is there already."""

    rows: Sequence[Row]
    held: Mapping[Modality, Content]
    kinds: Sequence[Kind]
    cache: Cache
    recipe: Recipe
    known: Space | None
    show: bool

    def fold(self, place: Path, mine: Sequence[int]) -> tuple[dict[Kind, Arrays], list[str]]:
        """Some rows, judged: from their file, or by a space trained on all others; and what could not be read."""
        file = place.with_suffix(".safetensors")
        kept = _read(file)
        if kept is not None:
            return kept
        space = self.known or self._trained(place, mine)
        seen, reasons = see(space, self.held, self.cache, self.show)
        everything = range(len(self.rows))
        found = {kind: arrays for kind in self.kinds if (arrays := judge(space, seen, kind, mine, everything))}
        _keep(file, found, reasons)
        tidy(place)
        return found, reasons

    def _trained(self, place: Path, unseen: Sequence[int]) -> Space:
        """A space that has learned from all rows but these."""
        out = set(unseen)
        others = [i for i in range(len(self.rows)) if i not in out]
        tell(f"{place.name}: learning from {len(others)} rows, to judge {len(unseen)}", self.show)
        # Rows that share a group, a file or a caption are right answers to each other.
        shared = {
            str(i): [("group", self.rows[i].group), *((m, c) for m in self.held for c in self.held[m].of_row[i])]
            for i in others
        }
        groups = {int(name): f"answers {leader}" for name, leader in link(shared).items()}
        return fit(self.recipe, others, self.rows, groups, place, self.show)


def _prepared(
    table: manifest.Manifest, space: str | Path | None, recipe: str, changes: Sequence[str], show: bool
) -> _Work:
    rows = table.rows
    there: list[Modality] = [m for m in MODALITIES if any(m in row.modalities for row in rows)]
    known = checkpoint.load(space) if space else None
    if known:
        _refuse_learned(known, table.path)
    chosen = known.recipe if known else recipe_for(there, recipe, changes, show)
    cache = cache_of(chosen.data.cache) or Cache.default()
    held: dict[Modality, Content] = {m: contents(rows, m, cache) for m in there if m in chosen.space.encoders}
    return _Work(rows, held, kinds(held, range(len(rows))), cache, chosen, known, show)


def _refuse_learned(space: Space, path: Path) -> None:
    """A space has learned to like the pairs it was taught, wrong ones too: its verdict on them says nothing."""
    if hashlib.sha256(path.read_bytes()).hexdigest() in space.history.get("data", {}).values():
        raise UsageError(
            f"{path}: is the very manifest that the space was trained on, so it has seen the pairs it should judge; "
            "leave out --space (the audit then trains spaces that have not), or give one trained on other data"
        )


def _begin(folder: Path, settings: Mapping[str, Any], restart: bool) -> None:
    """Make the folder ready; one that holds another audit, or other things, is left alone."""
    path = folder / SETTINGS
    text = json.dumps(settings, indent=1) + "\n"
    there = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if '"audit":' in there and there != text:
        if not restart:
            raise UsageError(
                f"{folder}: holds an audit of another manifest or with other settings; "
                "give another folder, or --restart"
            )
    elif there != text and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: holds other things; give an empty or new folder for the audit")
    if restart and (folder / SPACES).is_dir():
        shutil.rmtree(folder / SPACES)
    write_text(path, text)


def _keep(file: Path, found: Mapping[Kind, Arrays], reasons: Sequence[str]) -> None:
    # Contiguous: of a view, safetensors would write other numbers.
    tensors = {
        f"{a}-{b}/{name}": np.ascontiguousarray(v) for (a, b), arrays in found.items() for name, v in arrays.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_bytes(save(tensors, metadata={"unreadable": json.dumps(list(reasons))}))


def _read(file: Path) -> tuple[dict[Kind, Arrays], list[str]] | None:
    """A fold that was judged before; None where there is none, or none that is whole."""
    if not file.is_file():
        return None
    found: dict[Kind, Arrays] = {}
    try:
        with safe_open(file, "numpy") as opened:
            reasons = json.loads((opened.metadata() or {})["unreadable"])
            for key in opened.keys():  # noqa: SIM118 - not a dict
                kind, _, name = key.partition("/")
                found.setdefault(KINDS[kind], {})[name] = opened.get_tensor(key)
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    return found, reasons


def _write(result: Audit, table: manifest.Manifest, name: str, settings: Mapping[str, Any]) -> None:
    """Everything a person may want to look at, and the manifest without what is suspected."""
    folder, rows = result.folder, result.rows
    write_scores(folder / SCORES, result.judged, rows)
    write_suspects(folder / SUSPECTS, result.suspects, rows)
    wrong = [one for one in result.suspects if one.verdict == "wrong"]
    rejected = [decision_on(one, rows, "reject") for one in wrong]
    write_decided(table, rejected, folder / CLEAN, "audit")
    summary = {
        "manifest": str(table.path.name),
        "audit": name,
        "rows": len(rows),
        "wrong": len(wrong),
        "near_duplicates": len(result.suspects) - len(wrong),
        "unreadable": result.unreadable,
        "pairs": {f"{a}-{b}": _told(found) for (a, b), found in result.judged.items()},
        "settings": dict(settings),
    }
    write_text(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    shares = [
        f"{a}–{b} {100 * s.value:.1f}% ({100 * s.low:.1f}–{100 * s.high:.1f})" for (a, b), s in result.shares.items()
    ]
    told = f"Of the pairs about so many are wrong (95% interval): {', '.join(shares)}"
    write_page(folder / PAGE, name, table.path.name, told, result.suspects, rows)


def _told(found: Judged) -> dict[str, Any]:
    captions = {"captions": asdict(found.caption_share)} if found.caption_share else {}
    return {"share": asdict(found.share), **captions}
