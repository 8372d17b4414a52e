"""triptych audit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from triptych.audit.audit import Audit
    from triptych.audit.decisions import Action


def audit(
    manifest: Annotated[Path, typer.Argument(help="The manifest to audit.")],
    into: Annotated[
        Path | None, typer.Option("--into", "-o", help="Folder of the audit; with --apply, the new manifest.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="A run of other data that judges; else spaces are trained.")] = None,
    folds: Annotated[int, typer.Option(help="How many spaces, each judging rows it has not seen.")] = 4,
    recipe: Annotated[str, typer.Option(help="How they are trained.")] = "audit",
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
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
    from triptych.audit.audit import audit as look

    if apply:
        _apply(manifest, apply, into, undecided, allow_outside)
        return
    folder = into or Path("audits") / manifest.stem
    _report(look(manifest, folder, space, folds, recipe, change or [], seed, restart, allow_outside))


def _apply(source: Path, path: Path, into: Path | None, undecided: Action, allow_outside: bool) -> None:
    from triptych.app.cli.data import report
    from triptych.audit.audit import identity
    from triptych.audit.decisions import read_decisions, write_decided
    from triptych.data import manifest
    from triptych.errors import UsageError

    if into is None:
        raise UsageError("say where the new manifest goes: triptych audit MANIFEST --apply DECISIONS -o NEW.csv")
    table = manifest.read(source, allow_outside)
    made, draft = write_decided(table, read_decisions(path, identity(table.path), undecided), into, "audit")
    report(made, draft)


def _report(found: Audit) -> None:
    """What was found, where it lies and what to do next."""
    from triptych.app.show import failed, from_here, notes, out
    from triptych.audit.audit import CLEAN, PAGE, SUSPECTS

    failed(found.unreadable)
    for (a, b), judged in found.judged.items():
        out.print(f"{a}–{b}: of {judged.share.pairs} pairs about {judged.share} are wrong")
        if judged.caption_share:
            out.print(f"  of the captions in the other rows about {judged.caption_share}")
    wrong = [one for one in found.suspects if one.verdict == "wrong"]
    single = sum(one.caption is not None for one in wrong)
    out.print(
        f"suspected: {len(wrong) - single} rows, {single} single captions; "
        f"nearly the same as another row: {len(found.suspects) - len(wrong)}"
    )
    for name, what in ((SUSPECTS, "every suspect"), (CLEAN, "the manifest without them"), (PAGE, "to review them")):
        out.print(f"  {from_here(found.folder / name)}: {what}")
    notes.print(f"next: open {from_here(found.folder / PAGE)} in a browser; k keeps, r rejects, s swaps, u undoes")
