"""Measure how well an audit finds injected label noise in Flickr8k and ESC-50, for docs/audit.md.

The list of swapped rows is read only here, to score the audit; the audit does not see it.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from bench.real_data import find_dataset
from triptych.auditing.audit import AuditResult, audit
from triptych.data.datasets import DATASETS
from triptych.data.datasets.convert import convert
from triptych.data.label_noise import CLUSTER_SIZE, read_swaps
from triptych.data.noise_injection import NoiseKind, inject_noise, swaps_path
from triptych.encoders.minilm import MiniLM

WORK_FOLDER = Path(tempfile.gettempdir()) / "triptych-bench-audit"  # kept, so that an interrupted benchmark resumes


@dataclass(frozen=True)
class Case:
    """A dataset, its noise rate and the kind of noise."""

    source: str
    noise_rate: float
    noise_kind: NoiseKind = "random"
    cluster_size: int = CLUSTER_SIZE  # rows per cluster of similar captions


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
TABLE_HEADER = "| case | noise rate | estimate (95% CI) | AUROC | suspects | precision | recall | seconds |"


def main(names: list[str] | None = None) -> None:
    """Print a row of the table for each case."""
    print(TABLE_HEADER + "\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in names or CASES:
        case = CASES[name]
        folder = find_dataset(case.source)
        if folder is None:
            print(f"{case.source} not available: set TRIPTYCH_DATA to the folder that contains it")
            continue
        print(run(name, case, folder), flush=True)


def run(name: str, case: Case, folder: Path) -> str:
    """Run one case and return its row."""
    case_folder = WORK_FOLDER / name
    clean, noisy = case_folder / "clean.csv", case_folder / "noisy.csv"
    options = {"captions": "classes"} if case.source == "esc50" else {}
    convert(case.source, DATASETS[case.source], folder, clean, options)
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
    result = audit(noisy, case_folder / "audit", allow_outside=True)
    seconds = time.monotonic() - started
    swapped = {swap.id for swap in read_swaps(swaps_path(noisy))}
    return format_row(name, result, swapped, seconds)


def format_row(name: str, result: AuditResult, swapped: set[str], seconds: float) -> str:
    """Format the result of an audit against the true swaps."""
    ((_, scores),) = result.pair_scores.items()
    truth = np.array([result.rows[row].id in swapped for row in scores.rows.row])
    auroc = f"{roc_auc_score(truth, -scores.rows.fit_score):.3f}" if truth.any() else "–"
    flagged = {
        result.rows[suspect.row].id
        for suspect in result.suspects
        if suspect.verdict == "wrong" and suspect.caption is None
    }
    num_correct = len(flagged & swapped)
    precision = f"{100 * num_correct / len(flagged):.0f}%" if flagged else "–"
    recall = f"{100 * num_correct / len(swapped):.0f}%" if swapped else "–"
    noise_rate = scores.noise_rate
    interval = f"{100 * noise_rate.value:.1f} ({100 * noise_rate.low:.1f}–{100 * noise_rate.high:.1f})%"
    cells = (name, f"{100 * truth.mean():.1f}%", interval, auroc, len(flagged), precision, recall, f"{seconds:.0f}")
    return f"| {' | '.join(map(str, cells))} |"
