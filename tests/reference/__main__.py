"""python -m tests.reference [FOLDER]: print a line for each family, then the totals; exit code 1 on failure."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from tests.reference.run import VECTORS_FOLDER, Outcome, check_folder


def format_table(outcomes: list[Outcome]) -> list[str]:
    """Return a line for each family, followed by its failures."""
    width = max([len(o.family) for o in outcomes] + [len("family")])
    lines = [f"{'family':{width}}  cases  passed  failed  worst relative difference"]
    for family in sorted({o.family for o in outcomes}):
        results = [o for o in outcomes if o.family == family]
        failed = [o for o in results if o.problems]
        max_error = max(o.max_error for o in results)
        lines.append(
            f"{family:{width}}  {len(results):5}  {len(results) - len(failed):6}  {len(failed):6}  {max_error:.1e}"
        )
        lines += [f"    {o.name}: {problem}" for o in failed for problem in o.problems]
    return lines


def main(arguments: list[str]) -> int:
    """Print the table of a folder; return 0 if all cases pass, 1 if not, 2 for invalid arguments."""
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 2 if len(arguments) > 1 else 0
    folder = Path(arguments[0]) if arguments else VECTORS_FOLDER
    warnings.simplefilter("error")  # a plan that does not converge is a failure
    torch.manual_seed(0)
    outcomes = check_folder(folder)
    if not outcomes:
        problem = "holds no cases (NAME.npz beside NAME.json)" if folder.is_dir() else "is not a folder"
        print(f"{folder} {problem}")
    else:
        print("\n".join(format_table(outcomes)))
    failed = sum(bool(o.problems) for o in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed or int(not outcomes)} failed")
    return int(failed > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
