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

from triptych.progress import notify

if TYPE_CHECKING:
    from triptych.data.manifest import Manifest
    from triptych.evaluation.classification import Classification
    from triptych.evaluation.localisation import LocalisationResult
    from triptych.evaluation.retrieval import RetrievalResult
    from triptych.export import ExportResult
    from triptych.interfaces import Hit
    from triptych.recipe import Recipe
    from triptych.search.items import SkippedPath
    from triptych.training.run_summary import RunSummary

MAX_PROBLEMS = 5  # how many problems of a kind are shown
WIDE_COLUMNS = 78  # columns of a terminal that has room for everything
FEW_STEPS = 300  # below this, encoders from scratch have hardly begun
EXCERPT_CHARACTERS = 200  # characters of a text file
MAX_NAMES = 12  # how many names of a kind are shown
# Without markup: a user's path may hold square brackets.
stdout = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def make_recall_table(directions: Iterable[RetrievalResult], transductive: Iterable[RetrievalResult] = ()) -> Table:
    """Recall in every direction with its doubt and chance; what was ranked transductively in columns of its own."""
    is_wide = stdout.width >= WIDE_COLUMNS  # on a narrow terminal columns go, never digits
    title = "recall in % ± half of its 95% interval; chance is that of R@10" if is_wide else "recall in %"
    transductive_by_direction = {(d.query, d.gallery): d for d in transductive}
    cuts = (1, 10) if transductive_by_direction else (1, 5, 10)
    extra_headings = ("median rank", "mAP@10", "items") if is_wide and not transductive_by_direction else ()
    transductive_headings = tuple(f"transductive\nR@{k}" for k in cuts if transductive_by_direction)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("query → found", *(f"R@{k}" for k in cuts), "chance", *extra_headings, *transductive_headings):
        table.add_column(heading, justify="left" if "→" in heading else "right", no_wrap=True)
    for d in directions:
        extra_cells = (
            (f"{d.median_rank:g}", f"{100 * d.metrics['mAP@10']:.1f}", f"{d.num_items}") if extra_headings else ()
        )
        cells = (format_metric(d, f"R@{k}", is_wide) for k in cuts)
        transductive_cells = (
            [format_metric(transductive_by_direction[d.query, d.gallery], f"R@{k}", is_wide) for k in cuts]
            if transductive_by_direction
            else ()
        )
        table.add_row(
            f"{d.query} → {d.gallery}", *cells, f"{100 * d.chance_recall[10]:.1f}", *extra_cells, *transductive_cells
        )
    if transductive_by_direction:
        table.caption = "transductive: all queries of the test set ranked together, which is another question"
    return table


def print_classifications(results: Iterable[Classification], show_all: bool = False) -> None:
    """Accuracy of each modality with chance beside it, then its classes, worst first: all of them, or the first few."""
    for c in results:
        low, high = 100 * c.interval.low, 100 * c.interval.high
        stdout.print(f"{c.modality}: {100 * c.accuracy:.1f}% named rightly", style="bold", end=" ")
        stdout.print(f"(95% interval {low:.1f}–{high:.1f}); chance {100 * c.chance_level:.1f}%")
        stdout.print(
            f"  {c.num_items} items, {round(1 / c.chance_level)} classes; top 5 {100 * c.top5_accuracy:.1f}%, "
            f"mean over classes {100 * c.balanced_accuracy:.1f}%, always the largest class {100 * c.majority_baseline:.1f}%"
        )
        stdout.print(f"  by {c.method}")
        worst = sorted(c.classes, key=lambda result: (result.accuracy, result.label))
        for result in worst if show_all else worst[:MAX_PROBLEMS]:
            confused = f"   most often taken for {result.most_confused_with}" if result.most_confused_with else ""
            stdout.print(
                f"  {100 * result.accuracy:5.1f}%  {result.num_correct}/{result.num_items}  {result.label}{confused}"
            )
        if len(worst) > MAX_PROBLEMS and not show_all:
            stdout.print(f"  … and {len(worst) - MAX_PROBLEMS} better ones: --all shows them")


def format_metric(direction: RetrievalResult, name: str, show_interval: bool = True) -> str:
    """A share in %, with ± half of its interval where there is one."""
    interval = direction.intervals.get(name)
    return f"{100 * direction.metrics[name]:.1f}" + (
        f" ±{100 * interval.half_width:.1f}" if show_interval and interval else ""
    )


def make_localisation_table(results: Iterable[LocalisationResult]) -> Table:
    """How often heat falls on the right thing, with chance beside it."""
    title = "in %: hottest part on the thing, heat inside it, hotter than the scene's other things (chance 50)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("asked → where", "about", "questions", "hit", "chance", "mass", "chance", "told apart"):
        table.add_column(heading, justify="left" if heading in {"asked → where", "about"} else "right", no_wrap=True)
    for result in results:
        values = (result.hit, result.hit_chance_level, result.mass, result.mass_chance_level, result.discrimination)
        cells = ["–" if value is None else f"{100 * value:.1f}" for value in values]
        table.add_row(f"{result.query} → {result.gallery}", result.factor, f"{result.num_queries}", *cells)
    return table


def print_hits(hits: Sequence[Hit], positives: Container[str] = ()) -> None:
    """Print search results, most relevant first; those that are known to be right are marked.

    A line stands where hits become probably irrelevant.
    """
    from triptych.search.relevance import RELEVANCE_THRESHOLD

    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title, style in (("relevance", "bold"), ("score", "dim"), ("kind", "dim"), ("item", "cyan"), ("words", "")):
        table.add_column(title, style=style, overflow="fold", no_wrap=title in {"relevance", "score", "kind"})
    first_irrelevant = next((i for i, hit in enumerate(hits) if hit.relevance < RELEVANCE_THRESHOLD), len(hits))
    for i, hit in enumerate(hits):
        if i == first_irrelevant and stdout.is_terminal:
            table.add_row("", "", "", Text("below this, probably not relevant", style="dim italic"), "")
        segment = "" if hit.start is None else f" [{hit.start:g}–{'end' if hit.end is None else f'{hit.end:g}'} s]"
        file = _hit_path(hit)
        name = relative_path(file) + segment if file else ""
        # Of several captions the longest: it says the most.
        text = max(hit.captions, key=len, default="")
        if hit.modality == "text":
            text = _read_excerpt(file) if file else hit.item
        name += f" (+{len(hit.copies)} nearly the same)" if hit.copies else ""
        mark = "✓" if hit.item in positives else " "
        cells = f"{mark} {100 * hit.relevance:3.0f}%", f"{hit.score:6.3f}", hit.modality
        if stdout.is_terminal:
            table.add_row(*cells, Text(name), Text(text))
        else:  # for pipes and files: nothing is folded, and tabs stay tabs
            print(*cells, name, text, sep="\t", file=stdout.file)
    if stdout.is_terminal:
        stdout.print(table)


def _hit_path(hit: Hit) -> Path | None:
    """The file a hit is; a text may be one, too."""
    from triptych.media import TEXT_EXTENSIONS

    if hit.modality == "text" and not (hit.item.startswith("/") and hit.item.lower().endswith(tuple(TEXT_EXTENSIONS))):
        return None
    return Path(hit.item)


def _read_excerpt(path: Path) -> str:
    from triptych.errors import MediaError
    from triptych.media import text

    try:
        return text.read(path)[:EXCERPT_CHARACTERS]
    except MediaError:
        return ""


def relative_path(path: Path) -> str:
    """A path as one would type it: from the current folder where the file lies below it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def print_failures(messages: Collection[str], list_path: Path | None = None) -> None:
    """What could not be read: how many, the first few, and why; all of them are in the file `listed`, where given."""
    if messages:
        notify(f"could not be read and left out: {len(messages)}")
        for message in list(messages)[:MAX_PROBLEMS]:
            stderr.print(f"  {message}")
        if len(messages) > MAX_PROBLEMS:
            location = f": see {relative_path(list_path)}" if list_path else ""
            stderr.print(f"  … and {len(messages) - MAX_PROBLEMS} more{location}")


def print_skipped(skipped: Iterable[SkippedPath]) -> None:
    """One line for each reason why files were passed over, with their number by ending."""
    by_reason: dict[str, Counter[str]] = {}
    for file in skipped:
        by_reason.setdefault(file.reason, Counter())[file.extension] += 1
    for reason, endings in by_reason.items():
        most_common = endings.most_common(MAX_NAMES)
        counts = [f"{count} {ending}" for ending, count in most_common]
        num_others = endings.total() - sum(count for _, count in most_common)
        notify(f"passed over: {', '.join([*counts, f'{num_others} others'] if num_others else counts)} ({reason})")


def print_unusable_rows(manifest: Manifest) -> None:
    """One line on the rows of a manifest that cannot be used."""
    counts = manifest.counts
    if counts.unusable:
        total = counts.rows + counts.unusable
        notify(
            f"{counts.unusable} of {total} rows cannot be used; `{format_command('validate', manifest.path)}` says why"
        )


def format_command(name: str, *arguments: str | Path) -> str:
    """A triptych command as one can paste it into a shell: paths with spaces are quoted."""
    return shlex.join(["triptych", name, *map(str, arguments)])


def print_training_advice(folder: Path, recipe: Recipe) -> None:
    """What to know and do after training."""
    from triptych.training.run_directory import count_steps, is_improving

    steps = count_steps(folder)
    if steps < FEW_STEPS and _trains_from_scratch(recipe) and is_improving(folder):
        epochs = math.ceil(recipe.training.epochs * FEW_STEPS / max(1, steps))
        notify(
            f"only {steps} steps: encoders that start from scratch want more, such as "
            f"--set training.epochs={epochs} --restart"
        )
    stderr.print(_suggest_evaluation(folder, recipe))


def _trains_from_scratch(recipe: Recipe) -> bool:
    """Whether some encoder comes without pretrained weights."""
    from triptych.encoders import ENCODERS

    return any(not ENCODERS[part.name].frozen for part in recipe.space.encoders.values())


def _suggest_evaluation(folder: Path, recipe: Recipe) -> str:
    """How to measure the run: on its test split, else on another split that it has not learned from."""
    from triptych.data import manifest

    data = recipe.data
    paths = [path for path in (data.manifest, *data.extra_manifests) if path]
    splits = {path: manifest.read(path, data.allow_outside).counts.splits for path in paths}
    held_out = [
        (path, name) for path in paths for name in splits[path] if name not in {data.train_split, data.valid_split}
    ]
    if not held_out:
        return (
            f"next: no row is kept out of training to measure on; mark some as split {data.test_split} in "
            f"{' or '.join(paths)} and train again, or measure on other data: "
            f"{format_command('evaluate', folder)} --data MANIFEST"
        )
    path, name = next(((path, name) for path, name in held_out if name == data.test_split), held_out[0])
    options = ["--allow-outside"] if data.allow_outside else []
    return f"next: {format_command('evaluate', folder, '--data', path, '--split', name, *options)}"


def make_runs_table(summaries: Iterable[RunSummary]) -> Table:
    """Runs with their state, scores and time."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("run", "recipe", "state", "epochs", "loss", "valid", "time"):
        is_left = heading in {"run", "recipe", "state"}
        table.add_column(
            heading, justify="left" if is_left else "right", overflow="fold" if heading == "run" else "ellipsis"
        )
    for run in summaries:
        numbers = ("–" if run.loss is None else f"{run.loss:.3f}", "–" if run.valid is None else f"{run.valid:.1f}")
        minutes, seconds = divmod(round(run.seconds), 60)
        name = Text(relative_path(Path(run.folder)))
        table.add_row(
            name, run.recipe, run.state, f"{run.epochs}/{run.total_epochs}", *numbers, f"{minutes}:{seconds:02}"
        )
    return table


def make_export_table(results: Iterable[ExportResult]) -> Table:
    """Graphs with their drift and speed."""
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("takes", "encoder", "MB", "items", "drift", "graph ms", "space ms", "ratio (spread)"):
        table.add_column(heading, justify="left" if heading in {"takes", "encoder"} else "right", no_wrap=True)
    for result in results:
        if result.time_ratio is None or result.time_ratio_range is None:
            table.add_row(result.modality, result.encoder, *["–"] * 6)
            continue
        ratio = f"{result.time_ratio:.2f}× ({result.time_ratio_range[0]:.2f}–{result.time_ratio_range[1]:.2f})"
        sizes = (f"{result.megabytes:.1f}", f"{result.num_items}", f"{result.max_cosine_distance:.1e}")
        table.add_row(result.modality, result.encoder, *sizes, f"{result.onnx_ms:.1f}", f"{result.eager_ms:.1f}", ratio)
    return table


def print_manifest_summary(summary: Mapping[str, Any]) -> None:
    """What a manifest holds and everything that is wrong with it."""
    counts = summary["counts"]
    total = counts["rows"] + counts["unusable"]
    rows = f"{total} rows" if not counts["unusable"] else f"{counts['rows']} of {total} rows can be used"
    distinct = counts["unique_captions"]
    captions = f"{counts['captions']} captions"
    captions += f" ({distinct} different)" if distinct < counts["captions"] else ""
    stdout.print(f"{summary['path']}: {rows}, {captions}, {counts['files']} files")
    for title in ("modalities", "pairs", "splits", "labels"):
        items = [f"{name} {number}" for name, number in counts[title].items() if number]
        shown = items if len(items) <= MAX_NAMES else [*items[:MAX_NAMES], f"… {len(items) - MAX_NAMES} more"]
        stdout.print(f"  {title:<11}{', '.join(shown) or 'none'}")
    for group in summary["problems"]:
        colour = "red" if group["severity"] == "error" else "yellow"
        stdout.print(f"{group['severity']}: {group['category']}: {group['total']}", style=f"bold {colour}")
        for line in group["examples"]:
            stdout.print(f"  {line}")
        if group["more"]:
            stdout.print(f"  … and {group['more']} more")
    if not summary["problems"]:
        is_complete = summary["decoded"] or not counts["files"]
        stdout.print(f"nothing is wrong with {'it' if is_complete else 'the table'}", style="green")
    if counts["files"] and not summary["decoded"]:
        stdout.print("the files were not decoded: add --decode to find those that cannot be", style="yellow")
