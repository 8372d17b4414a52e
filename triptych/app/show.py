"""How results look on a terminal: shared by the commands and the demo."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.progress import tell

if TYPE_CHECKING:
    from triptych.contracts import Hit
    from triptych.data.manifest import Manifest
    from triptych.evaluation.classification import Classification
    from triptych.evaluation.localisation import Localisation
    from triptych.evaluation.retrieval import Retrieval
    from triptych.export import Exported
    from triptych.recipe import Recipe
    from triptych.search.items import Skipped
    from triptych.training.runs import Summary

FIRST = 5  # how many problems of a kind are shown
WIDE = 78  # columns of a terminal that has room for everything
FEW_STEPS = 300  # below this, encoders from scratch have hardly begun
SHOWN = 200  # characters of a text file
MANY = 12  # how many names of a kind are shown
# Without markup: a user's path may hold square brackets.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
notes = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def recalls(directions: Iterable[Retrieval], transductive: Iterable[Retrieval] = ()) -> Table:
    """Recall in every direction with its doubt and chance; what was ranked transductively in columns of its own."""
    wide = out.width >= WIDE  # on a narrow terminal columns go, never digits
    title = "recall in % ± half of its 95% interval; chance is that of R@10" if wide else "recall in %"
    together = {(d.query, d.gallery): d for d in transductive}
    cuts = (1, 10) if together else (1, 5, 10)
    rest = ("median rank", "mAP@10", "items") if wide and not together else ()
    apart = tuple(f"transductive\nR@{k}" for k in cuts if together)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("query → found", *(f"R@{k}" for k in cuts), "chance", *rest, *apart):
        table.add_column(heading, justify="left" if "→" in heading else "right", no_wrap=True)
    for d in directions:
        more = (f"{d.median_rank:g}", f"{100 * d.metrics['mAP@10']:.1f}", f"{d.items}") if rest else ()
        cells = (share(d, f"R@{k}", wide) for k in cuts)
        others = [share(together[d.query, d.gallery], f"R@{k}", wide) for k in cuts] if together else ()
        table.add_row(f"{d.query} → {d.gallery}", *cells, f"{100 * d.chance[10]:.1f}", *more, *others)
    if together:
        table.caption = "transductive: all queries of the test set ranked together, which is another question"
    return table


def classified(found: Iterable[Classification], each: bool = False) -> None:
    """Accuracy of each modality with chance beside it, then its classes, worst first: all of them, or the first few."""
    for c in found:
        low, high = 100 * c.interval.low, 100 * c.interval.high
        out.print(f"{c.modality}: {100 * c.accuracy:.1f}% named rightly", style="bold", end=" ")
        out.print(f"(95% interval {low:.1f}–{high:.1f}); chance {100 * c.chance:.1f}%")
        out.print(
            f"  {c.items} items, {round(1 / c.chance)} classes; top 5 {100 * c.top5:.1f}%, "
            f"mean over classes {100 * c.balanced:.1f}%, always the largest class {100 * c.largest:.1f}%"
        )
        out.print(f"  by {c.by}")
        worst = sorted(c.classes, key=lambda result: (result.accuracy, result.label))
        for result in worst if each else worst[:FIRST]:
            confused = f"   most often taken for {result.confused}" if result.confused else ""
            out.print(f"  {100 * result.accuracy:5.1f}%  {result.right}/{result.items}  {result.label}{confused}")
        if len(worst) > FIRST and not each:
            out.print(f"  … and {len(worst) - FIRST} better ones: --each shows them")


def share(direction: Retrieval, name: str, doubt: bool = True) -> str:
    """A share in %, with ± half of its interval where there is one."""
    found = direction.interval.get(name)
    return f"{100 * direction.metrics[name]:.1f}" + (f" ±{100 * found.half:.1f}" if doubt and found else "")


def localisations(found: Iterable[Localisation]) -> Table:
    """How often heat falls on the right thing, with chance beside it."""
    title = "in %: hottest part on the thing, heat inside it, hotter than the scene's other things (chance 50)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("asked → where", "about", "questions", "hit", "chance", "mass", "chance", "told apart"):
        table.add_column(heading, justify="left" if heading in {"asked → where", "about"} else "right", no_wrap=True)
    for each in found:
        shares = (each.hit, each.hit_chance, each.mass, each.mass_chance, each.apart)
        cells = ["–" if share is None else f"{100 * share:.1f}" for share in shares]
        table.add_row(f"{each.query} → {each.gallery}", each.about, f"{each.queries}", *cells)
    return table


def hits(found: Sequence[Hit], right: Container[str] = ()) -> None:
    """Print search results, most relevant first; those that are known to be right are marked.

    A line stands where hits become probably irrelevant.
    """
    from triptych.search.relevance import RELEVANT

    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title, style in (("relevance", "bold"), ("score", "dim"), ("kind", "dim"), ("item", "cyan"), ("words", "")):
        table.add_column(title, style=style, overflow="fold", no_wrap=title in {"relevance", "score", "kind"})
    below = next((i for i, hit in enumerate(found) if hit.relevance < RELEVANT), len(found))
    for i, hit in enumerate(found):
        if i == below and out.is_terminal:
            table.add_row("", "", "", Text("below this, probably not relevant", style="dim italic"), "")
        moment = "" if hit.start is None else f" [{hit.start:g}–{'end' if hit.end is None else f'{hit.end:g}'} s]"
        file = _file(hit)
        name = from_here(file) + moment if file else ""
        # Of several captions the longest: it says the most.
        words = max(hit.captions, key=len, default="")
        if hit.modality == "text":
            words = _beginning(file) if file else hit.item
        name += f" (+{len(hit.copies)} nearly the same)" if hit.copies else ""
        mark = "✓" if hit.item in right else " "
        cells = f"{mark} {100 * hit.relevance:3.0f}%", f"{hit.score:6.3f}", hit.modality
        if out.is_terminal:
            table.add_row(*cells, Text(name), Text(words))
        else:  # for pipes and files: nothing is folded, and tabs stay tabs
            print(*cells, name, words, sep="\t", file=out.file)
    if out.is_terminal:
        out.print(table)


def _file(hit: Hit) -> Path | None:
    """The file a hit is; a text may be one, too."""
    from triptych.media import TEXT_ENDINGS

    if hit.modality == "text" and not (hit.item.startswith("/") and hit.item.lower().endswith(tuple(TEXT_ENDINGS))):
        return None
    return Path(hit.item)


def _beginning(path: Path) -> str:
    from triptych.errors import MediaError
    from triptych.media import text

    try:
        return text.read(path)[:SHOWN]
    except MediaError:
        return ""


def from_here(path: Path) -> str:
    """A path as one would type it: from the current folder where the file lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def failed(messages: Collection[str], listed: Path | None = None) -> None:
    """What could not be read: how many, the first few, and why; all of them are in the file `listed`, where given."""
    if messages:
        tell(f"could not be read and left out: {len(messages)}")
        for message in list(messages)[:FIRST]:
            notes.print(f"  {message}")
        if len(messages) > FIRST:
            where = f": see {from_here(listed)}" if listed else ""
            notes.print(f"  … and {len(messages) - FIRST} more{where}")


def passed_over(skipped: Iterable[Skipped]) -> None:
    """One line for each reason why files were passed over, with their number by ending."""
    by_reason: dict[str, Counter[str]] = {}
    for one in skipped:
        by_reason.setdefault(one.reason, Counter())[one.ending] += 1
    for reason, endings in by_reason.items():
        shown = endings.most_common(MANY)
        counts = [f"{count} {ending}" for ending, count in shown]
        rest = endings.total() - sum(count for _, count in shown)
        tell(f"passed over: {', '.join([*counts, f'{rest} others'] if rest else counts)} ({reason})")


def left_out(manifest: Manifest) -> None:
    """One line on the rows of a manifest that cannot be used."""
    counts = manifest.counts
    if counts.unusable:
        total = counts.rows + counts.unusable
        tell(f"{counts.unusable} of {total} rows cannot be used; `{command('check', manifest.path)}` says why")


def command(name: str, *arguments: str | Path) -> str:
    """A triptych command as one can paste it into a shell: paths with spaces are quoted."""
    return shlex.join(["triptych", name, *map(str, arguments)])


def trained(folder: Path, recipe: Recipe) -> None:
    """What to know and do after training."""
    from triptych.training.run import is_improving, steps_taken

    steps = steps_taken(folder)
    if steps < FEW_STEPS and _learns_from_scratch(recipe) and is_improving(folder):
        epochs = math.ceil(recipe.training.epochs * FEW_STEPS / max(1, steps))
        tell(
            f"only {steps} steps: encoders that start from scratch want more, such as "
            f"--set training.epochs={epochs} --restart"
        )
    notes.print(_next_after_training(folder, recipe))


def _learns_from_scratch(recipe: Recipe) -> bool:
    """Whether some encoder comes without pretrained weights."""
    from triptych.encoders import ENCODERS

    return any(not ENCODERS[part.name].frozen for part in recipe.space.encoders.values())


def _next_after_training(folder: Path, recipe: Recipe) -> str:
    """How to measure the run: on its test split, else on another split that it has not learned from."""
    from triptych.data import manifest

    data = recipe.data
    paths = [path for path in (data.manifest, *data.also) if path]
    splits = {path: manifest.read(path, data.allow_outside).counts.splits for path in paths}
    held_out = [(path, name) for path in paths for name in splits[path] if name not in {data.train, data.valid}]
    if not held_out:
        return (
            f"next: no row is kept out of training to measure on; mark some as split {data.test} in "
            f"{' or '.join(paths)} and train again, or measure on other data: "
            f"{command('evaluate', folder)} --data MANIFEST"
        )
    path, name = next(((path, name) for path, name in held_out if name == data.test), held_out[0])
    outside = ["--allow-outside"] if data.allow_outside else []
    return f"next: {command('evaluate', folder, '--data', path, '--split', name, *outside)}"


def runs(found: Iterable[Summary]) -> Table:
    """Runs with their state, scores and time."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("run", "recipe", "state", "epochs", "loss", "valid", "time"):
        left = heading in {"run", "recipe", "state"}
        table.add_column(
            heading, justify="left" if left else "right", overflow="fold" if heading == "run" else "ellipsis"
        )
    for run in found:
        numbers = ("–" if run.loss is None else f"{run.loss:.3f}", "–" if run.valid is None else f"{run.valid:.1f}")
        minutes, seconds = divmod(round(run.seconds), 60)
        name = Text(from_here(Path(run.folder)))
        table.add_row(name, run.recipe, run.state, f"{run.epochs}/{run.of}", *numbers, f"{minutes}:{seconds:02}")
    return table


def exported(found: Iterable[Exported]) -> Table:
    """Graphs with their drift and speed."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("takes", "encoder", "MB", "items", "drift", "graph ms", "space ms", "ratio (spread)"):
        table.add_column(heading, justify="left" if heading in {"takes", "encoder"} else "right", no_wrap=True)
    for one in found:
        if one.ratio is None or one.spread is None:
            table.add_row(one.modality, one.encoder, *["–"] * 6)
            continue
        ratio = f"{one.ratio:.2f}× ({one.spread[0]:.2f}–{one.spread[1]:.2f})"
        sizes = (f"{one.megabytes:.1f}", f"{one.items}", f"{one.drift:.1e}")
        table.add_row(one.modality, one.encoder, *sizes, f"{one.onnx_ms:.1f}", f"{one.eager_ms:.1f}", ratio)
    return table


def diagnosis(summary: Mapping[str, Any]) -> None:
    """What a manifest holds and everything that is wrong with it."""
    counts = summary["counts"]
    total = counts["rows"] + counts["unusable"]
    rows = f"{total} rows" if not counts["unusable"] else f"{counts['rows']} of {total} rows can be used"
    different = counts["different_captions"]
    captions = f"{counts['captions']} captions"
    captions += f" ({different} different)" if different < counts["captions"] else ""
    out.print(f"{summary['path']}: {rows}, {captions}, {counts['files']} files")
    for title in ("modalities", "pairs", "splits", "labels"):
        found = [f"{name} {number}" for name, number in counts[title].items() if number]
        shown = found if len(found) <= MANY else [*found[:MANY], f"… {len(found) - MANY} more"]
        out.print(f"  {title:<11}{', '.join(shown) or 'none'}")
    for group in summary["problems"]:
        colour = "red" if group["severity"] == "error" else "yellow"
        out.print(f"{group['severity']}: {group['kind']}: {group['total']}", style=f"bold {colour}")
        for line in group["first"]:
            out.print(f"  {line}")
        if group["more"]:
            out.print(f"  … and {group['more']} more")
    if not summary["problems"]:
        is_whole = summary["decoded"] or not counts["files"]
        out.print(f"nothing is wrong with {'it' if is_whole else 'the table'}", style="green")
    if counts["files"] and not summary["decoded"]:
        out.print("the files were not decoded: add --decode to find those that cannot be", style="yellow")
