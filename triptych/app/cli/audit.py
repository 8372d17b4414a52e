"""The `triptych audit` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, Overrides, accepts_device, accepts_plugins

if TYPE_CHECKING:
    from triptych.auditing.audit import AuditResult

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Output folder, or with --apply the manifest to write.")
]
ScoringRun = Annotated[
    str | None,
    typer.Option(
        help="Run that scores the pairs, trained on other data. Default: train a space per fold.",
        callback=checks.check_space,
    ),
]
Undecided = Annotated[
    Literal["keep", "reject"], typer.Option(help="With --apply: keep or reject suspects without a decision.")
]


@accepts_plugins
@accepts_device
def audit(
    manifest: Annotated[Path, typer.Argument(help="Manifest to audit.", callback=checks.check_manifests)],
    output: Output = None,
    space: ScoringRun = None,
    folds: Annotated[int, typer.Option(help="Number of cross-validation folds. Scores are out-of-fold.")] = 4,
    recipe: Annotated[
        str, typer.Option(help="Recipe that trains the space of each fold.", callback=checks.check_recipe)
    ] = "audit",
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the fold assignment.")] = 0,
    apply: Annotated[Path | None, typer.Option(help="Decisions file from the review page, to apply.")] = None,
    undecided: Undecided = "keep",
    restart: Annotated[bool, typer.Option(help="Replace an existing audit in the output folder.")] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Find pairs that are probably mismatched, and suggest better matches.

    Writes suspects.csv, clean.csv (the manifest without the suspects) and review.html, a page to review the suspects.
    If the audit is interrupted, run the same command to resume.

    \b
    Examples:
      triptych audit pairs.csv
      triptych audit pairs.csv -o audits/pairs --set training.epochs=20
      triptych audit pairs.csv --apply decisions.json -o reviewed.csv
    """
    from triptych.app.cli.data import print_written_manifest
    from triptych.auditing import audit as audits

    if apply:
        print_written_manifest(*audits.apply_review(manifest, apply, output, undecided, allow_outside))
        return
    _print_audit(audits.audit(manifest, output, space, folds, recipe, overrides or [], seed, restart, allow_outside))


def _print_audit(result: AuditResult) -> None:
    from triptych.app.terminal import print_failures, relative_path, stderr, stdout
    from triptych.auditing.audit import CLEAN_FILE, REVIEW_FILE, SUSPECTS_FILE

    print_failures(result.unreadable)
    for (a, b), scores in result.pair_scores.items():
        stdout.print(f"{a}–{b}: estimated noise rate of {scores.noise_rate.num_pairs} pairs: {scores.noise_rate}")
        if scores.caption_noise_rate:
            stdout.print(f"  noise rate of single captions in the remaining rows: {scores.caption_noise_rate}")
    wrong = [suspect for suspect in result.suspects if suspect.verdict == "wrong"]
    num_captions = sum(suspect.caption is not None for suspect in wrong)
    stdout.print(
        f"suspects: {len(wrong) - num_captions} rows, {num_captions} single captions; "
        f"near-duplicates: {len(result.suspects) - len(wrong)}"
    )
    clean, suspects, review = (relative_path(result.folder / name) for name in (CLEAN_FILE, SUSPECTS_FILE, REVIEW_FILE))
    stdout.print(f"  {suspects}: all suspects\n  {clean}: the manifest without the suspects")
    stdout.print(f"  {review}: page to review the suspects")
    stderr.print(f"next: open {review} in a browser; keyboard: k keep, r reject, s swap, u undo")
