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

from bench.real_data import find_dataset
from triptych.audit.audit import AuditResult, audit
from triptych.data.label_noise import CLUSTER_SIZE, read_swaps
from triptych.data.noise_injection import NoiseKind, inject_noise, swaps_path
from triptych.data.sources import SOURCES
from triptych.data.sources.convert import convert
from triptych.encoders.minilm import MiniLM

WORK_FOLDER = Path(tempfile.gettempdir()) / "triptych-bench-audit"  # a bench that was interrupted goes on


@dataclass(frozen=True)
class Case:
    """A data set, how much of it is swapped, and how."""

    source: str
    noise_rate: float
    noise_kind: NoiseKind = "random"
    cluster_size: int = CLUSTER_SIZE  # rows to a cluster of similar ones


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
TABLE_HEADER = "| swapped | truth | estimate (95%) | AUROC | suspects | of them wrong | of the wrong found | seconds |"


def main(names: list[str] | None = None) -> None:
    """Print a line of the table for each case."""
    print(TABLE_HEADER + "\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in names or CASES:
        case = CASES[name]
        folder = find_dataset(case.source)
        if folder is None:
            print(f"no {case.source} here: set TRIPTYCH_DATA to the folder that holds it")
            continue
        print(run(name, case, folder), flush=True)


def run(name: str, case: Case, folder: Path) -> str:
    """One case from the data set to its line."""
    folder_of_case = WORK_FOLDER / name
    clean, noisy = folder_of_case / "right.csv", folder_of_case / "wrong.csv"
    options = {"captions": "classes"} if case.source == "esc50" else {}
    convert(case.source, SOURCES[case.source], folder, clean, options)
    encoder = MiniLM() if case.noise_kind == "similar" else None
    inject_noise(
        clean,
        noisy,
        case.noise_rate,
        case.noise_kind,
        encoder=encoder,
        cluster_size=case.cluster_size,
        allow_outside=True,
        show_progress=False,
    )
    started = time.monotonic()
    result = audit(noisy, folder_of_case / "audit", allow_outside=True)
    seconds = time.monotonic() - started
    swapped = {swap.id for swap in read_swaps(swaps_path(noisy))}
    return format_row(name, result, swapped, seconds)


def format_row(name: str, result: AuditResult, swapped: set[str], seconds: float) -> str:
    """What was found, beside the truth."""
    ((_, judged),) = result.pair_scores.items()
    truth = np.array([result.rows[row].id in swapped for row in judged.rows.row])
    auroc = f"{roc_auc_score(truth, -judged.rows.fit_score):.3f}" if truth.any() else "–"
    flagged = {
        result.rows[suspect.row].id
        for suspect in result.suspects
        if suspect.verdict == "wrong" and suspect.caption is None
    }
    num_correct = len(flagged & swapped)
    precision = f"{100 * num_correct / len(flagged):.0f}%" if flagged else "–"
    recall = f"{100 * num_correct / len(swapped):.0f}%" if swapped else "–"
    noise_rate = judged.noise_rate
    interval = f"{100 * noise_rate.value:.1f} ({100 * noise_rate.low:.1f}–{100 * noise_rate.high:.1f})%"
    cells = (name, f"{100 * truth.mean():.1f}%", interval, auroc, len(flagged), precision, recall, f"{seconds:.0f}")
    return f"| {' | '.join(map(str, cells))} |"
