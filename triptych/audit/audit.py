"""audit(): find the pairs of a manifest that are probably wrong, by cross-validation."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych import checkpoint, plugins
from triptych.audit import folds
from triptych.audit.review import Action, make_decision, read_decisions, write_review_page, write_reviewed_manifest
from triptych.audit.scoring import FoldScores, embed_contents, read_fold, score_fold, write_fold
from triptych.audit.suspects import PairScores, Suspect, find_suspects, merge_folds, write_scores, write_suspects
from triptych.data import manifest
from triptych.data.cache import Cache, resolve_cache
from triptych.data.datasets.draft import ManifestDraft
from triptych.data.datasets.manifest_writer import WrittenManifest
from triptych.data.manifest import Row
from triptych.errors import UsageError
from triptych.files import write_text
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.run_directory import LAST_FILE

NUM_FOLDS = 4
FORMAT_VERSION = 4  # format version of the audit folder; increase it if the files or the scores of a fold change
SETTINGS_FILE, SUMMARY_FILE, REVIEW_FILE = "settings.json", "audit.json", "review.html"
SUSPECTS_FILE, SCORES_FILE, CLEAN_FILE = "suspects.csv", "scores.csv", "clean.csv"
FOLDS_FOLDER = "folds"


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: the scores of each modality pair, and all suspects."""

    folder: Path
    rows: Sequence[Row]
    pair_scores: Mapping[folds.ModalityPair, PairScores]
    suspects: list[Suspect]
    unreadable: list[str]


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
    allow_plugins: str | Iterable[str] = (),
) -> AuditResult:
    """Score all pairs of a manifest out-of-fold, and write the suspects and a review page to a folder.

    The rows are split into folds, and the rows of each fold are scored by a space that is trained on all other folds.
    If `space` is given, this space scores all rows. A space that was trained on these rows cannot be used. To resume an
    interrupted audit, call `audit` again with the same arguments: finished folds are read from the folder, and training
    resumes from the last epoch. `triptych.load` describes `allow_plugins`.
    """
    folder, table = Path(folder), manifest.read(source, allow_outside)
    rows, manifest_hash = table.rows, hash_manifest(table.path)
    if not 2 <= num_folds <= 100:
        raise UsageError(f"--folds {num_folds}: the number of folds must be 2 to 100")
    with plugins.allow(allow_plugins):
        job = _prepare_job(table, space, recipe, overrides, show_progress)
    settings: dict[str, Any] = {"format_version": FORMAT_VERSION, "manifest_hash": manifest_hash}
    settings |= {"folds": num_folds, "seed": seed}
    settings |= {"space": checkpoint.compute_fingerprint(space)} if space else {"recipe": job.recipe.to_toml()}
    _prepare_folder(folder, settings, restart)

    fold_of = dict.fromkeys((row.id for row in rows), 0)
    if space is None:
        fold_of = folds.group_kfold(folds.collect_pairs(job.contents, job.modality_pairs, rows), num_folds, seed)
    fold_scores: dict[folds.ModalityPair, list[FoldScores]] = {pair: [] for pair in job.modality_pairs}
    unreadable: set[str] = set()
    for fold in sorted(set(fold_of.values())):
        fold_rows = [i for i, row in enumerate(rows) if fold_of[row.id] == fold]
        scores_by_pair, reasons = job.load_or_score_fold(folder / FOLDS_FOLDER / f"fold-{fold}", fold_rows)
        unreadable |= set(reasons)
        for modality_pair, scores in scores_by_pair.items():
            fold_scores[modality_pair].append(scores)
    pair_scores = {modality_pair: merge_folds(scores) for modality_pair, scores in fold_scores.items() if scores}
    result = AuditResult(folder, rows, pair_scores, find_suspects(pair_scores, rows), sorted(unreadable))
    _write_outputs(result, table, manifest_hash, settings)
    return result


def apply_review(
    manifest_path: Path,
    decisions_path: Path,
    output: Path | None,
    undecided: Action = "keep",
    allow_outside: bool = False,
) -> tuple[WrittenManifest, ManifestDraft]:
    """Write a copy of a manifest with the decisions of a review applied."""
    if output is None:
        raise UsageError("give the path of the new manifest: triptych audit MANIFEST --apply DECISIONS -o NEW.csv")
    table = manifest.read(manifest_path, allow_outside)
    decisions = read_decisions(decisions_path, hash_manifest(table.path), undecided)
    return write_reviewed_manifest(table, decisions, output, "audit")


def hash_manifest(path: Path) -> str:
    """Return the content hash of a manifest; decisions are only valid for the manifest with the same hash."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class _AuditJob:
    """The rows to score, and either the recipe for training a space per fold or a fixed space that scores all rows."""

    rows: Sequence[Row]
    contents: Mapping[Modality, folds.ModalityContents]
    modality_pairs: Sequence[folds.ModalityPair]
    cache: Cache
    recipe: Recipe
    fixed_space: Space | None
    show_progress: bool

    def load_or_score_fold(
        self, run_folder: Path, fold_rows: Sequence[int]
    ) -> tuple[dict[folds.ModalityPair, FoldScores], list[str]]:
        """Return the scores of a fold, read from disk if available, and the error messages of unreadable files."""
        file = run_folder.with_suffix(".safetensors")
        if (cached := read_fold(file)) is not None:
            return cached
        space = self.fixed_space or folds.train_fold_space(
            self.recipe, self.contents, self.rows, fold_rows, run_folder, self.show_progress
        )
        embedded, reasons = embed_contents(space, self.contents, self.cache, self.show_progress)
        scores_by_pair = {
            modality_pair: scores
            for modality_pair in self.modality_pairs
            if (scores := score_fold(space, embedded, modality_pair, fold_rows, range(len(self.rows))))
        }
        write_fold(file, scores_by_pair, reasons)
        (run_folder / LAST_FILE).unlink(missing_ok=True)  # only needed to resume training
        return scores_by_pair, reasons


def _prepare_job(
    table: manifest.Manifest, space: str | Path | None, recipe: str, overrides: Sequence[str], show_progress: bool
) -> _AuditJob:
    rows = table.rows
    present_modalities: list[Modality] = [m for m in MODALITIES if any(m in row.modalities for row in rows)]
    if fixed_space := checkpoint.load(space) if space else None:
        _check_not_trained_on(fixed_space, table.path)
        space_recipe = fixed_space.recipe
    else:
        space_recipe = folds.load_fold_recipe(present_modalities, recipe, overrides, show_progress)
    cache = resolve_cache(space_recipe.data.cache) or Cache.default()
    contents: dict[Modality, folds.ModalityContents] = {
        m: folds.collect_contents(rows, m, cache) for m in present_modalities if m in space_recipe.space.encoders
    }
    modality_pairs = folds.find_modality_pairs(contents, range(len(rows)))
    return _AuditJob(rows, contents, modality_pairs, cache, space_recipe, fixed_space, show_progress)


def _check_not_trained_on(space: Space, path: Path) -> None:
    """Raise UsageError if the space was trained on this manifest, because the space may have memorised wrong pairs."""
    if hashlib.sha256(path.read_bytes()).hexdigest() in space.history.get("data", {}).values():
        raise UsageError(
            f"{path}: the space was trained on this manifest, so its scores are not out-of-fold; leave out --space "
            "(the audit then trains its own spaces), or give a space trained on other data"
        )


def _prepare_folder(folder: Path, settings: Mapping[str, Any], restart: bool) -> None:
    """Create the folder of an audit. Raise UsageError if the folder contains a different audit or other files."""
    path = folder / SETTINGS_FILE
    previous = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    document: Any = None
    with suppress(ValueError):
        document = json.loads(previous)
    if isinstance(document, dict) and "folds" in document:
        if document != settings and not restart:
            reason = "contains an audit of another manifest or with other settings"
            if document.get("format_version") != FORMAT_VERSION:
                reason = "made by an earlier version of triptych"
            raise UsageError(f"{folder}: {reason}; give another folder, or replace this audit with --restart")
    elif folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: contains files that are not from an audit; give a new or empty folder")
    if restart and (folder / FOLDS_FOLDER).is_dir():
        shutil.rmtree(folder / FOLDS_FOLDER)
    write_text(path, json.dumps(settings, indent=1) + "\n")


def _write_outputs(
    result: AuditResult, table: manifest.Manifest, manifest_hash: str, settings: Mapping[str, Any]
) -> None:
    """Write the tables, the summary, the review page, and the manifest without the suspects."""
    folder, rows = result.folder, result.rows
    write_scores(folder / SCORES_FILE, result.pair_scores, rows)
    write_suspects(folder / SUSPECTS_FILE, result.suspects, rows)
    wrong_suspects = [suspect for suspect in result.suspects if suspect.verdict == "wrong"]
    rejections = [make_decision(suspect, rows, "reject") for suspect in wrong_suspects]
    write_reviewed_manifest(table, rejections, folder / CLEAN_FILE, "audit")
    summary = {
        "manifest": str(table.path.name),
        "manifest_hash": manifest_hash,
        "rows": len(rows),
        "wrong": len(wrong_suspects),
        "near_duplicates": len(result.suspects) - len(wrong_suspects),
        "unreadable": result.unreadable,
        "pairs": {f"{a}-{b}": _summarise_pair(scores) for (a, b), scores in result.pair_scores.items()},
        "settings": dict(settings),
    }
    write_text(folder / SUMMARY_FILE, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    rates = [
        f"{a}–{b} {100 * rate.value:.1f}% ({100 * rate.low:.1f}–{100 * rate.high:.1f})"
        for (a, b), rate in ((pair, scores.noise_rate) for pair, scores in result.pair_scores.items())
    ]
    summary_text = f"Estimated rate of wrong pairs (95% interval): {', '.join(rates)}"
    write_review_page(folder / REVIEW_FILE, manifest_hash, table.path.name, summary_text, result.suspects, rows)


def _summarise_pair(scores: PairScores) -> dict[str, Any]:
    captions = {"caption_noise_rate": asdict(scores.caption_noise_rate)} if scores.caption_noise_rate else {}
    return {"noise_rate": asdict(scores.noise_rate), **captions}
