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
from triptych.audit.decisions import write_reviewed_manifest
from triptych.audit.fitting import load_fold_recipe, remove_resume_state, train_fold_space
from triptych.audit.folds import group_kfold
from triptych.audit.listing import write_scores, write_suspects
from triptych.audit.pairs import (
    MODALITY_PAIRS,
    ModalityContents,
    ModalityPair,
    collect_contents,
    collect_pairs,
    find_modality_pairs,
)
from triptych.audit.review import make_decision, write_review_page
from triptych.audit.scoring import Arrays, embed_contents, score_fold
from triptych.audit.share import NoiseRateEstimate
from triptych.audit.suspects import PairScores, Suspect, find_suspects, merge_folds
from triptych.data import manifest
from triptych.data.cache import Cache, resolve_cache
from triptych.data.manifest import Row
from triptych.data.sources.draft import find_connected_groups
from triptych.errors import UsageError
from triptych.files import atomic_write, write_text
from triptych.interfaces import MODALITIES, Modality
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.space import Space

NUM_FOLDS = 4
FORMAT_VERSION = 3  # raise it when the same rows would be judged otherwise
SETTINGS_FILE, SUMMARY_FILE, REVIEW_FILE = "settings.json", "audit.json", "review.html"
SUSPECTS_FILE, SCORES_FILE, CLEAN_FILE = "suspects.csv", "scores.csv", "clean.csv"
FOLDS_FOLDER = "folds"


@dataclass(frozen=True)
class AuditResult:
    """What was found: by kind of pair the share of wrong ones, and every suspect."""

    folder: Path
    rows: Sequence[Row]
    pair_scores: Mapping[ModalityPair, PairScores]
    suspects: list[Suspect]
    unreadable: list[str]

    @property
    def noise_rates(self) -> dict[ModalityPair, NoiseRateEstimate]:
        """The estimated share of wrong pairs of each kind."""
        return {kind: found.noise_rate for kind, found in self.pair_scores.items()}


def audit(
    source: str | Path,
    folder: str | Path,
    space: str | Path | None = None,
    num_folds: int = NUM_FOLDS,
    recipe: str = "audit",
    overrides: Sequence[str] = (),
    seed: int = 0,
    restart: bool = False,
    allow_outside: bool = False,
    show_progress: bool = True,
) -> AuditResult:
    """Judge every pair of a manifest by a space that has not seen it, and write down what is suspected.

    The rows are parted into folds; for each, a space is trained on the rows of the others and judges it. With `space`,
    that one judges all of them: it should not have been trained on them. Interrupted, the same call goes on: a fold
    that was judged is not judged again, one in training goes on from its last epoch.
    """
    folder, table = Path(folder), manifest.read(source, allow_outside)
    rows, manifest_hash = table.rows, hash_manifest(table.path)
    if not 2 <= num_folds <= 100:
        raise UsageError(f"--folds {num_folds}: allowed are 2 to 100")
    job = _prepare_job(table, space, recipe, overrides, show_progress)
    settings: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "manifest_hash": manifest_hash,
        "folds": num_folds,
        "seed": seed,
    }
    settings |= {"space": checkpoint.compute_fingerprint(space)} if space else {"recipe": job.recipe.to_toml()}
    _prepare_folder(folder, settings, restart)

    fold_of = (
        group_kfold(collect_pairs(job.contents, job.modality_pairs, rows), num_folds, seed)
        if space is None
        else dict.fromkeys((row.id for row in rows), 0)
    )
    fold_arrays: dict[ModalityPair, list[Arrays]] = {modality_pair: [] for modality_pair in job.modality_pairs}
    unreadable: set[str] = set()
    for fold in sorted(set(fold_of.values())):
        fold_rows = [i for i, row in enumerate(rows) if fold_of[row.id] == fold]
        arrays_by_pair, reasons = job.load_or_score_fold(folder / FOLDS_FOLDER / f"fold-{fold}", fold_rows)
        unreadable |= set(reasons)
        for kind, arrays in arrays_by_pair.items():
            fold_arrays[kind].append(arrays)
    pair_scores = {modality_pair: merge_folds(some) for modality_pair, some in fold_arrays.items() if some}
    result = AuditResult(folder, rows, pair_scores, find_suspects(pair_scores, rows), sorted(unreadable))
    _write_outputs(result, table, manifest_hash, settings)
    return result


def hash_manifest(path: Path) -> str:
    """What names a manifest as it is now: decisions about it hold for nothing else."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class _AuditJob:
    """What is judged, and by what: spaces of a recipe, or a space that is there already."""

    rows: Sequence[Row]
    contents: Mapping[Modality, ModalityContents]
    modality_pairs: Sequence[ModalityPair]
    cache: Cache
    recipe: Recipe
    fixed_space: Space | None
    show_progress: bool

    def load_or_score_fold(
        self, run_folder: Path, fold_rows: Sequence[int]
    ) -> tuple[dict[ModalityPair, Arrays], list[str]]:
        """Some rows, judged: from their file, or by a space trained on all others; and what could not be read."""
        file = run_folder.with_suffix(".safetensors")
        cached = _read_fold(file)
        if cached is not None:
            return cached
        space = self.fixed_space or self._train_space(run_folder, fold_rows)
        embedded, reasons = embed_contents(space, self.contents, self.cache, self.show_progress)
        all_rows = range(len(self.rows))
        arrays_by_pair = {
            modality_pair: arrays
            for modality_pair in self.modality_pairs
            if (arrays := score_fold(space, embedded, modality_pair, fold_rows, all_rows))
        }
        _write_fold(file, arrays_by_pair, reasons)
        remove_resume_state(run_folder)
        return arrays_by_pair, reasons

    def _train_space(self, run_folder: Path, held_out: Sequence[int]) -> Space:
        """A space that has learned from all rows but these."""
        excluded = set(held_out)
        train_rows = [i for i in range(len(self.rows)) if i not in excluded]
        notify(f"{run_folder.name}: learning from {len(train_rows)} rows, to judge {len(held_out)}", self.show_progress)
        # Rows that share a group, a file or a caption are right answers to each other.
        shared_keys = {
            str(i): [
                ("group", self.rows[i].group),
                *((m, c) for m in self.contents for c in self.contents[m].by_row[i]),
            ]
            for i in train_rows
        }
        groups = {int(name): f"answers {leader}" for name, leader in find_connected_groups(shared_keys).items()}
        return train_fold_space(self.recipe, train_rows, self.rows, groups, run_folder, self.show_progress)


def _prepare_job(
    table: manifest.Manifest, space: str | Path | None, recipe: str, overrides: Sequence[str], show_progress: bool
) -> _AuditJob:
    rows = table.rows
    present_modalities: list[Modality] = [m for m in MODALITIES if any(m in row.modalities for row in rows)]
    fixed_space = checkpoint.load(space) if space else None
    if fixed_space:
        _check_not_trained_on(fixed_space, table.path)
    space_recipe = (
        fixed_space.recipe if fixed_space else load_fold_recipe(present_modalities, recipe, overrides, show_progress)
    )
    cache = resolve_cache(space_recipe.data.cache) or Cache.default()
    contents: dict[Modality, ModalityContents] = {
        m: collect_contents(rows, m, cache) for m in present_modalities if m in space_recipe.space.encoders
    }
    return _AuditJob(
        rows, contents, find_modality_pairs(contents, range(len(rows))), cache, space_recipe, fixed_space, show_progress
    )


def _check_not_trained_on(space: Space, path: Path) -> None:
    """A space has learned to like the pairs it was taught, wrong ones too: its verdict on them says nothing."""
    if hashlib.sha256(path.read_bytes()).hexdigest() in space.history.get("data", {}).values():
        raise UsageError(
            f"{path}: is the very manifest that the space was trained on, so it has seen the pairs it should judge; "
            "leave out --space (the audit then trains spaces that have not), or give one trained on other data"
        )


def _prepare_folder(folder: Path, settings: Mapping[str, Any], restart: bool) -> None:
    """Make the folder ready; one that holds another audit, or other things, is left alone."""
    path = folder / SETTINGS_FILE
    text = json.dumps(settings, indent=1) + "\n"
    previous = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if '"manifest_hash":' in previous and previous != text:
        if not restart:
            raise UsageError(
                f"{folder}: holds an audit of another manifest or with other settings; "
                "give another folder, or --restart"
            )
    elif previous != text and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: holds other things; give an empty or new folder for the audit")
    if restart and (folder / FOLDS_FOLDER).is_dir():
        shutil.rmtree(folder / FOLDS_FOLDER)
    write_text(path, text)


def _write_fold(file: Path, arrays_by_pair: Mapping[ModalityPair, Arrays], reasons: Sequence[str]) -> None:
    # Contiguous: of a view, safetensors would write other numbers.
    tensors = {
        f"{a}-{b}/{name}": np.ascontiguousarray(v)
        for (a, b), arrays in arrays_by_pair.items()
        for name, v in arrays.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_bytes(save(tensors, metadata={"unreadable": json.dumps(list(reasons))}))


def _read_fold(file: Path) -> tuple[dict[ModalityPair, Arrays], list[str]] | None:
    """A fold that was judged before; None where there is none, or none that is whole."""
    if not file.is_file():
        return None
    arrays_by_pair: dict[ModalityPair, Arrays] = {}
    try:
        with safe_open(file, "numpy") as opened:
            reasons = json.loads((opened.metadata() or {})["unreadable"])
            for key in opened.keys():  # noqa: SIM118 - not a dict
                pair_name, _, name = key.partition("/")
                arrays_by_pair.setdefault(MODALITY_PAIRS[pair_name], {})[name] = opened.get_tensor(key)
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    return arrays_by_pair, reasons


def _write_outputs(
    result: AuditResult, table: manifest.Manifest, manifest_hash: str, settings: Mapping[str, Any]
) -> None:
    """Everything a person may want to look at, and the manifest without what is suspected."""
    folder, rows = result.folder, result.rows
    write_scores(folder / SCORES_FILE, result.pair_scores, rows)
    write_suspects(folder / SUSPECTS_FILE, result.suspects, rows)
    wrong_suspects = [one for one in result.suspects if one.verdict == "wrong"]
    rejections = [make_decision(one, rows, "reject") for one in wrong_suspects]
    write_reviewed_manifest(table, rejections, folder / CLEAN_FILE, "audit")
    summary = {
        "manifest": str(table.path.name),
        "manifest_hash": manifest_hash,
        "rows": len(rows),
        "wrong": len(wrong_suspects),
        "near_duplicates": len(result.suspects) - len(wrong_suspects),
        "unreadable": result.unreadable,
        "pairs": {f"{a}-{b}": _summarise_pair(found) for (a, b), found in result.pair_scores.items()},
        "settings": dict(settings),
    }
    write_text(folder / SUMMARY_FILE, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    rates = [
        f"{a}–{b} {100 * s.value:.1f}% ({100 * s.low:.1f}–{100 * s.high:.1f})"
        for (a, b), s in result.noise_rates.items()
    ]
    summary_text = f"Of the pairs about so many are wrong (95% interval): {', '.join(rates)}"
    write_review_page(folder / REVIEW_FILE, manifest_hash, table.path.name, summary_text, result.suspects, rows)


def _summarise_pair(scores: PairScores) -> dict[str, Any]:
    captions = {"caption_noise_rate": asdict(scores.caption_noise_rate)} if scores.caption_noise_rate else {}
    return {"noise_rate": asdict(scores.noise_rate), **captions}
