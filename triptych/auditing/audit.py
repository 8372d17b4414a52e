"""audit(): find the pairs of a manifest or of Python data that are probably wrong, by cross-validation."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych import checkpoint, plugins
from triptych.auditing import folds
from triptych.auditing.evidence import NoiseRateEstimate
from triptych.auditing.review import Action, make_decision, read_decisions, write_review_page, write_reviewed_manifest
from triptych.auditing.scoring import FoldScores, embed_contents, read_fold, score_fold, write_fold
from triptych.auditing.suspects import (
    SUSPECT_COLUMNS,
    PairScores,
    Suspect,
    find_suspects,
    merge_folds,
    suspect_to_row,
    suspects_to_arrow,
    write_scores,
    write_suspects,
)
from triptych.data import manifest
from triptych.data.cache import Cache, resolve_cache
from triptych.data.datasets.draft import ManifestDraft
from triptych.data.datasets.manifest_writer import WrittenManifest
from triptych.data.manifest import Row
from triptych.data.manifest_problems import to_printable
from triptych.data.materialise import has_other_files, materialised
from triptych.data.tables_in_memory import DataLike, is_manifest_path
from triptych.errors import UsageError
from triptych.files import remove_if_unused, write_text
from triptych.interfaces import MODALITIES, Modality
from triptych.recipe import Recipe
from triptych.result_tables import format_table, rows_to_pandas
from triptych.space import Space
from triptych.training.run_directory import LAST_FILE

if TYPE_CHECKING:
    import pyarrow

NUM_FOLDS = 4
FORMAT_VERSION = 4  # format version of the audit folder; increase it if the files or the scores of a fold change
SETTINGS_FILE, SUMMARY_FILE, REVIEW_FILE = "settings.json", "audit.json", "review.html"
SUSPECTS_FILE, SCORES_FILE, CLEAN_FILE = "suspects.csv", "scores.csv", "clean.csv"
FOLDS_FOLDER, DATA_FOLDER = "folds", "data"
MAX_SUSPECTS_IN_REPR = 10


@dataclass(frozen=True, repr=False)
class AuditResult:
    """The result of an audit: the scores of each modality pair, and all suspects."""

    folder: Path
    rows: Sequence[Row]
    pair_scores: Mapping[folds.ModalityPair, PairScores]
    suspects: list[Suspect]
    unreadable: list[str]

    @property
    def noise_rates(self) -> dict[folds.ModalityPair, NoiseRateEstimate]:
        """The estimated fraction of wrong pairs of each modality pair, with its 95% interval."""
        return {modality_pair: scores.noise_rate for modality_pair, scores in self.pair_scores.items()}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per suspect, with the columns of suspects.csv."""
        return [suspect_to_row(suspect, self.rows) for suspect in self.suspects]

    def to_dict(self) -> dict[str, Any]:
        """Return the noise rates, the suspects and the unreadable files as JSON-compatible data."""
        pairs = {f"{a}-{b}": _summarise_pair(scores) for (a, b), scores in self.pair_scores.items()}
        return {"rows": len(self.rows), "pairs": pairs, "suspects": self.to_rows(), "unreadable": self.unreadable}

    def to_arrow(self) -> pyarrow.Table:
        """Return a pyarrow.Table with one row per suspect."""
        return suspects_to_arrow(self.to_rows())

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per suspect."""
        return rows_to_pandas(self.to_rows(), SUSPECT_COLUMNS)

    def __repr__(self) -> str:
        """Return the noise rates, the number of suspects, and the first suspects."""
        rates = [f"{a}–{b}: estimated noise rate {rate}" for (a, b), rate in self.noise_rates.items()]
        num_wrong = sum(suspect.verdict == "wrong" for suspect in self.suspects)
        counts = f"{num_wrong} suspects, {len(self.suspects) - num_wrong} near-duplicates in {len(self.rows)} rows"
        cells = [
            [row["id"], row["verdict"], row["modality"], f"{row['p_wrong']:.2f}", to_printable(row["current"], 60)]
            for row in self.to_rows()[:MAX_SUSPECTS_IN_REPR]
        ]
        table = format_table(["id", "verdict", "modality", "p_wrong", "current"], cells) if cells else ""
        more = "…" if len(self.suspects) > len(cells) else ""
        return "\n".join(filter(None, [*rates, counts, table, more, f"review page: {self.folder / REVIEW_FILE}"]))


def audit(
    data: DataLike,
    output: str | Path | None = None,
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
    """Score all pairs out-of-fold, and write the suspects and a review page to a folder.

    The rows are split into folds, and the rows of each fold are scored by a space that is trained on all other folds.
    To resume an interrupted audit, call `audit` again with the same arguments: finished folds are read from the folder,
    and training resumes from the last epoch.

    Args:
        data: The path of a manifest, or a table, dataset, iterable of dictionaries or dictionary of splits, as for
            `triptych.train`. Python data is written to the folder. All splits are audited.
        output: The folder of the audit. Default: audits/NAME with the name of the manifest, or audits/data.
        space: A run that scores all rows, trained on other data. Default: train a space per fold.
        num_folds: The number of folds.
        recipe: The recipe that trains the space of each fold.
        overrides: Changes of values of the recipe, such as "training.epochs=20".
        seed: The seed of the fold assignment.
        restart: Whether to replace an existing audit in the folder.
        allow_outside: Whether a manifest may list files outside its folder.
        show_progress: Whether to show progress.
        allow_plugins: Packages whose plug-ins the recipe or the space may import; see `triptych.load`.

    Returns:
        The suspects and the noise rates. `repr` returns a summary; `to_pandas`, `to_arrow` and `to_dict` convert them.

    Raises:
        ManifestError: The data is invalid, or has too few pairs.
        UsageError: The folder contains other files or another audit, or the space was trained on the data.

    Example:
        >>> import triptych
        >>> result = triptych.audit("pairs.csv", overrides=["training.epochs=1"])
        >>> suspects = result.to_pandas()[["id", "p_wrong", "better"]]
        >>> {pair: 0 <= rate.low <= rate.value <= rate.high for pair, rate in result.noise_rates.items()}
        {('image', 'audio'): True, ('image', 'text'): True, ('audio', 'text'): True}
    """
    if not 2 <= num_folds <= 100:
        raise UsageError(f"--folds {num_folds}: the number of folds must be 2 to 100")
    options = _AuditOptions(space, num_folds, recipe, overrides, seed, restart, show_progress, allow_plugins)
    if is_manifest_path(data):
        table = manifest.read(str(data), allow_outside)
        return _audit_table(table, Path(output or Path("audits") / Path(str(data)).stem), options)
    folder = Path(output or Path("audits") / DATA_FOLDER)
    can_replace, settings_file = restart or not _check_folder(folder), folder / SETTINGS_FILE
    with (
        remove_if_unused(folder),
        materialised(data, folder / DATA_FOLDER, can_replace, settings_file.exists, show_progress) as written,
    ):
        return _audit_table(manifest.read(written.path, allow_outside=True), folder, options)


@dataclass(frozen=True)
class _AuditOptions:
    """The arguments of `audit` except the data and the folder."""

    space: str | Path | None
    num_folds: int
    recipe: str
    overrides: Sequence[str]
    seed: int
    restart: bool
    show_progress: bool
    allow_plugins: str | Iterable[str]


def _audit_table(table: manifest.Manifest, folder: Path, options: _AuditOptions) -> AuditResult:
    rows, manifest_hash, space = table.rows, hash_manifest(table.path), options.space
    with plugins.allow(options.allow_plugins):
        job = _prepare_job(table, space, options.recipe, options.overrides, options.show_progress)
    settings: dict[str, Any] = {"format_version": FORMAT_VERSION, "manifest_hash": manifest_hash}
    settings |= {"folds": options.num_folds, "seed": options.seed}
    settings |= {"space": checkpoint.compute_fingerprint(space)} if space else {"recipe": job.recipe.to_toml()}
    _prepare_folder(folder, settings, options.restart)

    fold_of = dict.fromkeys((row.id for row in rows), 0)
    if space is None:
        pairs = folds.collect_pairs(job.contents, job.modality_pairs, rows)
        fold_of = folds.group_kfold(pairs, options.num_folds, options.seed)
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


def _check_folder(folder: Path) -> dict[str, Any]:
    """Return the settings of the audit in a folder, or {}. Raise UsageError if the folder contains other files."""
    path = folder / SETTINGS_FILE
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(document, dict) and "folds" in document:
            return document
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if names - {DATA_FOLDER} or has_other_files(folder / DATA_FOLDER):
        raise UsageError(f"{folder}: contains files that are not from an audit; give a new or empty folder")
    return {}


def _prepare_folder(folder: Path, settings: Mapping[str, Any], restart: bool) -> None:
    """Create the folder of an audit. Raise UsageError if the folder contains a different audit or other files."""
    document = _check_folder(folder)
    if document and document != settings and not restart:
        reason = "contains an audit of another manifest or with other settings"
        if document.get("format_version") != FORMAT_VERSION:
            reason = "made by an earlier version of triptych"
        raise UsageError(f"{folder}: {reason}; give another folder, or replace this audit with --restart")
    if restart and (folder / FOLDS_FOLDER).is_dir():
        shutil.rmtree(folder / FOLDS_FOLDER)
    write_text(folder / SETTINGS_FILE, json.dumps(settings, indent=1) + "\n")


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
