"""The `triptych audit` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from triptych.app.cli.options import AllowOutside, Overrides

if TYPE_CHECKING:
    from triptych.audit.audit import AuditResult


def audit(
    manifest: Annotated[Path, typer.Argument(help="Manifest to audit.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output folder; with --apply, the manifest to write.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Run trained on other data that scores the pairs. Default: train one per fold.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds. Scores are out-of-fold.")] = 4,
    recipe: Annotated[str, typer.Option(help="Recipe for the spaces of the folds.")] = "audit",
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the fold assignment.")] = 0,
    apply: Annotated[Path | None, typer.Option(help="Apply decisions exported from the review page.")] = None,
    undecided: Annotated[
        Literal["keep", "reject"], typer.Option(help="With --apply: what to do with undecided suspects.")
    ] = "keep",
    restart: Annotated[bool, typer.Option(help="Replace an existing audit in the output folder.")] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Find pairs that are probably mismatched, and suggest better matches.

    Writes suspects.csv, clean.csv (the manifest without the suspects) and review.html, a page to review them. If it is
    interrupted, run the same command to resume.

    \b
    Examples:
      triptych audit pairs.csv
      triptych audit pairs.csv -o audits/pairs --set training.epochs=20
      triptych audit pairs.csv --apply decisions.json -o reviewed.csv
    """
    from triptych.app.cli.data import print_written
    from triptych.audit.audit import apply_review
    from triptych.audit.audit import audit as run_audit

    if apply:
        print_written(*apply_review(manifest, apply, output, undecided, allow_outside))
        return
    folder = output or Path("audits") / manifest.stem
    _print_audit(run_audit(manifest, folder, space, folds, recipe, overrides or [], seed, restart, allow_outside))


def _print_audit(result: AuditResult) -> None:
    from triptych.app.terminal import print_failures, relative_path, stderr, stdout
    from triptych.audit.audit import CLEAN_FILE, REVIEW_FILE, SUSPECTS_FILE

    print_failures(result.unreadable)
    for (a, b), pair_result in result.pair_scores.items():
        noise_rate = pair_result.noise_rate
        stdout.print(f"{a}–{b}: estimated noise rate of {noise_rate.num_pairs} pairs: {noise_rate}")
        if pair_result.caption_noise_rate:
            stdout.print(f"  of the captions in the other rows: {pair_result.caption_noise_rate}")
    wrong = [suspect for suspect in result.suspects if suspect.verdict == "wrong"]
    num_captions = sum(suspect.caption is not None for suspect in wrong)
    stdout.print(
        f"suspects: {len(wrong) - num_captions} rows, {num_captions} single captions; "
        f"near-duplicates: {len(result.suspects) - len(wrong)}"
    )
    for name, description in (
        (SUSPECTS_FILE, "all suspects"),
        (CLEAN_FILE, "the manifest without them"),
        (REVIEW_FILE, "page to review them"),
    ):
        stdout.print(f"  {relative_path(result.folder / name)}: {description}")
    review_path = relative_path(result.folder / REVIEW_FILE)
    stderr.print(f"next: open {review_path} in a browser; keys: k keep, r reject, s swap, u undo")
