"""triptych audit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from triptych.audit.audit import AuditResult
    from triptych.audit.decisions import Action


def audit(
    manifest: Annotated[Path, typer.Argument(help="The manifest to audit.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the audit; with --apply, the new manifest.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="A run of other data that judges; else spaces are trained.")] = None,
    folds: Annotated[int, typer.Option(help="How many spaces, each judging rows it has not seen.")] = 4,
    recipe: Annotated[str, typer.Option(help="How they are trained.")] = "audit",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed parts the rows otherwise.")] = 0,
    apply: Annotated[Path | None, typer.Option(help="Decisions saved from the review page, to be carried out.")] = None,
    undecided: Annotated[
        Literal["keep", "reject"], typer.Option(help="With --apply: what becomes of wrong ones nobody decided on.")
    ] = "keep",
    restart: Annotated[bool, typer.Option(help="Replace an audit that is in the folder.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Find the pairs that are probably wrong, and what would fit better. Interrupted? The same command goes on.

    Writes suspects.csv, clean.csv (the manifest without them) and review.html, to go through them with the keyboard.

    \b
    Examples:
      triptych audit pairs.csv
      triptych audit pairs.csv -o audits/pairs --set training.epochs=20
      triptych audit pairs.csv --apply decisions.json -o reviewed.csv
    """
    from triptych.audit.audit import audit as run_audit

    if apply:
        _apply_decisions(manifest, apply, output, undecided, allow_outside)
        return
    folder = output or Path("audits") / manifest.stem
    _print_audit(run_audit(manifest, folder, space, folds, recipe, overrides or [], seed, restart, allow_outside))


def _apply_decisions(
    manifest_path: Path, decisions_path: Path, output: Path | None, undecided: Action, allow_outside: bool
) -> None:
    from triptych.app.cli.data import print_written
    from triptych.audit.audit import hash_manifest
    from triptych.audit.decisions import read_decisions, write_reviewed_manifest
    from triptych.data import manifest
    from triptych.errors import UsageError

    if output is None:
        raise UsageError("say where the new manifest goes: triptych audit MANIFEST --apply DECISIONS -o NEW.csv")
    table = manifest.read(manifest_path, allow_outside)
    written, draft = write_reviewed_manifest(
        table, read_decisions(decisions_path, hash_manifest(table.path), undecided), output, "audit"
    )
    print_written(written, draft)


def _print_audit(result: AuditResult) -> None:
    """What was found, where it lies and what to do next."""
    from triptych.app.terminal import print_failures, relative_path, stderr, stdout
    from triptych.audit.audit import CLEAN_FILE, REVIEW_FILE, SUSPECTS_FILE

    print_failures(result.unreadable)
    for (a, b), pair_result in result.pair_scores.items():
        stdout.print(f"{a}–{b}: of {pair_result.noise_rate.num_pairs} pairs about {pair_result.noise_rate} are wrong")
        if pair_result.caption_noise_rate:
            stdout.print(f"  of the captions in the other rows about {pair_result.caption_noise_rate}")
    wrong = [suspect for suspect in result.suspects if suspect.verdict == "wrong"]
    num_captions = sum(suspect.caption is not None for suspect in wrong)
    stdout.print(
        f"suspected: {len(wrong) - num_captions} rows, {num_captions} single captions; "
        f"nearly the same as another row: {len(result.suspects) - len(wrong)}"
    )
    for name, description in (
        (SUSPECTS_FILE, "every suspect"),
        (CLEAN_FILE, "the manifest without them"),
        (REVIEW_FILE, "to review them"),
    ):
        stdout.print(f"  {relative_path(result.folder / name)}: {description}")
    stderr.print(
        f"next: open {relative_path(result.folder / REVIEW_FILE)} in a browser; k keeps, r rejects, s swaps, u undoes"
    )
