"""How well an audit finds pairs that were swapped on purpose: Flickr8k and ESC-50, for docs/audit.md.

The answer key, which rows were swapped, is read only here, to score what the audit said without it.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from bench.real_data import find
from triptych.audit.audit import Audit, audit
from triptych.data.damage import Kind, damage, swaps_of
from triptych.data.noise import NEIGHBOURS, read_swaps
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert
from triptych.encoders.minilm import MiniLM

ROOM = Path(tempfile.gettempdir()) / "triptych-bench-audit"  # a bench that was interrupted goes on


@dataclass(frozen=True)
class Case:
    """A data set, how much of it is swapped, and how."""

    source: str
    share: float
    kind: Kind = "random"
    size: int = NEIGHBOURS  # rows to a cluster of similar ones


CASES = {
    "flickr8k-0": Case("flickr8k", 0.0),
    "flickr8k-20": Case("flickr8k", 0.2),
    "flickr8k-40": Case("flickr8k", 0.4),
    "flickr8k-similar-20": Case("flickr8k", 0.2, "similar", 400),
    "flickr8k-similar-40": Case("flickr8k", 0.4, "similar", 400),
    "flickr8k-close-20": Case("flickr8k", 0.2, "similar"),
    "flickr8k-close-40": Case("flickr8k", 0.4, "similar"),
    "esc50-10": Case("esc50", 0.1),
}
HEAD = "| swapped | truth | estimate (95%) | AUROC | suspects | of them wrong | of the wrong found | seconds |"


def main(names: list[str] | None = None) -> None:
    """Print a line of the table for each case."""
    print(HEAD + "\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in names or CASES:
        case = CASES[name]
        folder = find(case.source)
        if folder is None:
            print(f"no {case.source} here: set TRIPTYCH_DATA to the folder that holds it")
            continue
        print(run(name, case, folder), flush=True)


def run(name: str, case: Case, folder: Path) -> str:
    """One case from the data set to its line."""
    room = ROOM / name
    right, wrong = room / "right.csv", room / "wrong.csv"
    options = {"captions": "classes"} if case.source == "esc50" else {}
    convert(case.source, SOURCES[case.source], folder, right, options)
    encoder = MiniLM() if case.kind == "similar" else None
    damage(right, wrong, case.share, case.kind, encoder=encoder, size=case.size, allow_outside=True, show=False)
    started = time.monotonic()
    found = audit(wrong, room / "audit", allow_outside=True)
    took = time.monotonic() - started
    swapped = {swap.id for swap in read_swaps(swaps_of(wrong))}
    return line(name, found, swapped, took)


def line(name: str, found: Audit, swapped: set[str], took: float) -> str:
    """What was found, beside the truth."""
    ((_, judged),) = found.judged.items()
    truth = np.array([found.rows[row].id in swapped for row in judged.arrays["row"]])
    auroc = f"{roc_auc_score(truth, -judged.arrays['row.fit']):.3f}" if truth.any() else "–"
    named = {found.rows[one.row].id for one in found.suspects if one.verdict == "wrong" and one.caption is None}
    right = len(named & swapped)
    precise = f"{100 * right / len(named):.0f}%" if named else "–"
    whole = f"{100 * right / len(swapped):.0f}%" if swapped else "–"
    share = judged.share
    interval = f"{100 * share.value:.1f} ({100 * share.low:.1f}–{100 * share.high:.1f})%"
    cells = (name, f"{100 * truth.mean():.1f}%", interval, auroc, len(named), precise, whole, f"{took:.0f}")
    return f"| {' | '.join(map(str, cells))} |"
