"""Terminal output of results, shared by the commands and the demo."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from triptych.progress import notify
from triptych.search.collection_folder import DEFAULT_COLLECTION

if TYPE_CHECKING:
    from triptych.data.manifest import Manifest
    from triptych.encoders.catalogue import EncoderInfo
    from triptych.evaluation.classification import Classification
    from triptych.evaluation.localisation import LocalisationResult
    from triptych.evaluation.retrieval import RetrievalResult
    from triptych.export import ExportResult
    from triptych.interfaces import Modality
    from triptych.plugins import Plugin
    from triptych.recipe import Recipe
    from triptych.search.item import Hit
    from triptych.search.scan import PathScan, SkippedPath
    from triptych.training.run_summary import RunSummary

MAX_PROBLEMS = 5  # maximum number of problems printed per category
WIDE_COLUMNS = 78  # terminal width in characters from which all table columns are printed
FEW_STEPS = 300  # minimum number of training steps that encoders trained from scratch need
EXCERPT_CHARACTERS = 200  # number of characters printed of a text file
MAX_NAMES = 12  # maximum number of names or extensions printed in one line
# Markup is off, because paths may contain square brackets.
stdout = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))  # noqa: T201


def print_results(results: Sequence[Any], as_json: bool, print_table: Callable[[Sequence[Any]], None]) -> None:
    """Print dataclasses as JSON, or call a function that prints them as a table."""
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        print_table(results)


def make_table(headings: Sequence[str], left: Container[str], title: str | None = None, no_wrap: bool = True) -> Table:
    """Return an empty table. The columns in `left` are aligned to the left, the other columns to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=no_wrap)
    return table


def read_manifest(path: Path, allow_outside: bool = False) -> Manifest:
    """Read a manifest and print a warning if some of its rows are unusable."""
    from triptych.data import manifest

    table = manifest.read(path, allow_outside)
    print_unusable_rows(table)
    return table


def make_recall_table(directions: Iterable[RetrievalResult], transductive: Iterable[RetrievalResult] = ()) -> Table:
    """Return a table of recall by direction, with interval and chance level. Transductive results use extra columns."""
    is_wide = stdout.width >= WIDE_COLUMNS  # a narrow terminal shows fewer columns, so that no number is cut
    title = "recall in % ± half of the 95% interval; chance level of R@10" if is_wide else "recall in %"
    joint = {(d.query, d.gallery): d for d in transductive}
    cuts = (1, 10) if joint else (1, 5, 10)
    extra = ("median rank", "mAP@10", "items") if is_wide and not joint else ()
    joint_headings = tuple(f"transductive\nR@{k}" for k in cuts if joint)
    headings = ("query → gallery", *(f"R@{k}" for k in cuts), "chance", *extra, *joint_headings)
    table = make_table(headings, {"query → gallery"}, title)
    for d in directions:
        cells = [format_metric(d, f"R@{k}", is_wide) for k in cuts] + [f"{100 * d.chance_recall[10]:.1f}"]
        if extra:
            cells += [f"{d.median_rank:g}", f"{100 * d.metrics['mAP@10']:.1f}", f"{d.num_items}"]
        if joint:
            cells += [format_metric(joint[d.query, d.gallery], f"R@{k}", is_wide) for k in cuts]
        table.add_row(f"{d.query} → {d.gallery}", *cells)
    if joint:
        table.caption = "transductive: all test queries are ranked jointly; not comparable with the other columns"
    if extra and Measurement.get(stdout, stdout.options.update(width=1000), table).maximum > stdout.width:
        table.columns[headings.index("median rank")].header = "median\nrank"  # intervals of few items are wide
    return table


def print_classifications(results: Iterable[Classification], show_all: bool = False) -> None:
    """Print the accuracy and chance level of each modality, then the accuracy of each class, lowest first."""
    for c in results:
        low, high = 100 * c.interval.low, 100 * c.interval.high
        stdout.print(f"{c.modality}: {100 * c.accuracy:.1f}% accuracy", style="bold", end=" ")
        stdout.print(f"(95% interval {low:.1f}–{high:.1f}); chance {100 * c.chance_level:.1f}%")
        stdout.print(
            f"  {c.num_items} items, {round(1 / c.chance_level)} classes; top-5 {100 * c.top5_accuracy:.1f}%, "
            f"balanced {100 * c.balanced_accuracy:.1f}%, majority-class baseline {100 * c.majority_baseline:.1f}%"
        )
        stdout.print(f"  by {c.method}")
        worst = sorted(c.classes, key=lambda r: (r.accuracy, r.label))
        for r in worst if show_all else worst[:MAX_PROBLEMS]:
            confused = f"   most often confused with {r.most_confused_with}" if r.most_confused_with else ""
            stdout.print(f"  {100 * r.accuracy:5.1f}%  {r.num_correct}/{r.num_items}  {r.label}{confused}")
        if len(worst) > MAX_PROBLEMS and not show_all:
            stdout.print(f"  … and {len(worst) - MAX_PROBLEMS} more classes (show them with --all)")


def format_metric(direction: RetrievalResult, name: str, show_interval: bool = True) -> str:
    """Format a metric in %, followed by ± half the width of its confidence interval if the interval is known."""
    interval = direction.intervals.get(name) if show_interval else None
    return f"{100 * direction.metrics[name]:.1f}" + (f" ±{100 * interval.half_width:.1f}" if interval else "")


def print_localisation(results: Iterable[LocalisationResult]) -> None:
    """Print a table of pointing accuracy, attribution mass and discrimination, with chance levels."""
    title = (
        "in %; hit: the maximum is on the object; mass: attribution inside the object; discrimination: attribution is "
        "higher on the object than on the scene's other objects (chance level 50)"
    )
    headings = ("query → gallery", "factor", "queries", "hit", "chance", "mass", "chance", "discrimination")
    table = make_table(headings, {"query → gallery", "factor"}, title)
    for result in results:
        values = (result.hit, result.hit_chance_level, result.mass, result.mass_chance_level, result.discrimination)
        cells = ["–" if value is None else f"{100 * value:.1f}" for value in values]
        table.add_row(f"{result.query} → {result.gallery}", result.factor, f"{result.num_queries}", *cells)
    stdout.print(table)


def print_hits(hits: Sequence[Hit], positives: Container[str] = ()) -> None:
    """Print search results, most relevant first, with a line above the first probably irrelevant hit.

    Hits whose path or text is in `positives` are marked with ✓.
    """
    from triptych.search.ranking import RELEVANCE_THRESHOLD

    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title, style in (("relevance", "bold"), ("score", "dim"), ("modality", "dim"), ("item", "cyan"), ("text", "")):
        table.add_column(title, style=style, overflow="fold", no_wrap=title in {"relevance", "score", "modality"})
    first_irrelevant = next((i for i, hit in enumerate(hits) if hit.relevance < RELEVANCE_THRESHOLD), len(hits))
    for i, hit in enumerate(hits):
        if i == first_irrelevant and stdout.is_terminal:
            table.add_row("", "", "", Text("hits below are probably not relevant", style="dim italic"), "")
        source, content = hit.source, hit.source.content
        end = "end" if source.end is None else f"{source.end:g}"
        segment = "" if source.start is None else f" [{source.start:g}–{end} s]"
        file = content if isinstance(content, Path) else None
        name = relative_path(file) + segment if file else ""
        # The longest caption is usually the most informative.
        text = max(hit.item.captions, key=len, default="")
        if source.modality == "text":
            # Use the excerpt stored at indexing, because the file may have changed or moved since then.
            text = (hit.item.excerpt or "")[:EXCERPT_CHARACTERS] if file else str(content)
        name += f" (+{len(hit.duplicates)} near-duplicates)" if hit.duplicates else ""
        mark = "✓" if str(content) in positives else " "
        cells = f"{mark} {100 * hit.relevance:3.0f}%", f"{hit.score:6.3f}", source.modality
        if stdout.is_terminal:
            table.add_row(*cells, Text(name), Text(text))
        else:  # output to a pipe or file: one tab-separated line per hit
            print(*cells, name, text, sep="\t", file=stdout.file)
    if stdout.is_terminal:
        stdout.print(table)


def print_search_results(hits: Sequence[Hit]) -> None:
    """Print the hits. Print a note if there are no hits, or if no hit is relevant."""
    from triptych.search.ranking import RELEVANCE_THRESHOLD

    print_hits(hits)
    if not hits:
        stderr.print("no matching items in this collection")
    elif hits[0].relevance < RELEVANCE_THRESHOLD:
        stderr.print("probably no item matches: all scores are in the usual range of this collection")


def relative_path(path: Path) -> str:
    """Return a path inside the current folder as a relative path, and any other path unchanged."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def print_failures(messages: Collection[str], list_path: Path | None = None) -> None:
    """Print the number of unreadable files and the first few messages. The file `list_path` lists all messages."""
    if messages:
        notify(f"unreadable files skipped: {len(messages)}")
        for message in list(messages)[:MAX_PROBLEMS]:
            stderr.print(f"  {message}")
        if len(messages) > MAX_PROBLEMS:
            location = f": see {relative_path(list_path)}" if list_path else ""
            stderr.print(f"  … and {len(messages) - MAX_PROBLEMS} more{location}")


def print_skipped(skipped: Iterable[SkippedPath]) -> None:
    """Print one line per reason, with the number of skipped files of each extension."""
    by_reason: dict[str, Counter[str]] = {}
    for file in skipped:
        by_reason.setdefault(file.reason, Counter())[file.extension] += 1
    for reason, extensions in by_reason.items():
        most_common = extensions.most_common(MAX_NAMES)
        counts = [f"{count} {extension}" for extension, count in most_common]
        num_others = extensions.total() - sum(count for _, count in most_common)
        notify(f"skipped: {', '.join([*counts, f'{num_others} others'] if num_others else counts)} ({reason})")


def print_scan(scan: PathScan) -> None:
    """Print which files and rows `triptych index` does not use: skipped files, unusable rows, an ignored manifest."""
    if scan.manifest is not None:
        print_unusable_rows(scan.manifest)
    if scan.has_unused_manifest:
        stderr.print(f"note: {scan.path} contains a manifest; index the manifest itself to use its captions")
    print_skipped(scan.skipped)


def print_search_commands(uri: str, modalities: Sequence[Modality]) -> None:
    """Print example commands that search a collection."""
    examples = {"text": ["some words"], "audio": ["--audio", "one.wav"], "image": ["--image", "one.jpg"]}
    example = next(example for modality, example in examples.items() if modality in modalities)
    is_default = uri == DEFAULT_COLLECTION
    search_command = format_command("search", *example, *([] if is_default else ["--collection", uri]))
    stderr.print(f"next: {search_command}, or {format_command('serve', *([] if is_default else [uri]))}")


def print_unusable_rows(manifest: Manifest) -> None:
    """Print the number of unusable rows of a manifest, if there are any."""
    counts = manifest.counts
    if counts.unusable:
        total, command = counts.rows + counts.unusable, format_command("validate", manifest.path)
        notify(f"{counts.unusable} of {total} rows are unusable; `{command}` lists the reasons")


def format_command(name: str, *arguments: str | Path) -> str:
    """Format a triptych command with shell quoting."""
    return shlex.join(["triptych", name, *map(str, arguments)])


def print_training_advice(folder: Path, recipe: Recipe) -> None:
    """Print a warning if the training was short, and the command for the next step."""
    from triptych.training.metrics_log import count_steps, is_improving

    steps = count_steps(folder)
    if steps < FEW_STEPS and _trains_from_scratch(recipe) and is_improving(folder):
        epochs = math.ceil(recipe.training.epochs * FEW_STEPS / max(1, steps))
        notify(f"only {steps} steps, too few for training from scratch; try --set training.epochs={epochs} --restart")
    stderr.print(_suggest_evaluation(folder, recipe))


def _trains_from_scratch(recipe: Recipe) -> bool:
    from triptych.encoders import ENCODERS

    return any(not ENCODERS[component.name].frozen for component in recipe.space.encoders.values())


def _suggest_evaluation(folder: Path, recipe: Recipe) -> str:
    """Return the command that evaluates the run on the test split or another held-out split, or advice to add one."""
    from triptych.data import manifest

    data = recipe.data
    paths = [path for path in (data.manifest, *data.extra_manifests) if path]
    splits = {path: manifest.read(path, data.allow_outside).counts.splits for path in paths}
    used = {data.train_split, data.valid_split}
    held_out = [(path, name) for path in paths for name in splits[path] if name not in used]
    if not held_out:
        return (
            f"next: there is no held-out split to evaluate on; mark some rows as split {data.test_split} in "
            f"{' or '.join(paths)} and train again, or evaluate on other data: "
            f"{format_command('evaluate', folder)} --data MANIFEST"
        )
    path, name = next(((path, name) for path, name in held_out if name == data.test_split), held_out[0])
    options = ["--allow-outside"] if data.allow_outside else []
    return f"next: {format_command('evaluate', folder, '--data', path, '--split', name, *options)}"


def print_runs(summaries: Sequence[RunSummary]) -> None:
    """Print a table of runs with state, epochs, loss, validation score and training time, and why runs stopped."""
    headings = ("run", "recipe", "state", "epochs", "loss", "valid", "time")
    table = make_table(headings, {"run", "recipe", "state"}, no_wrap=False)
    table.columns[0].overflow = "fold"
    for run in summaries:
        numbers = ("–" if run.loss is None else f"{run.loss:.3f}", "–" if run.valid is None else f"{run.valid:.1f}")
        minutes, seconds = divmod(round(run.seconds), 60)
        name, epochs = Text(relative_path(Path(run.folder))), f"{run.epochs}/{run.total_epochs}"
        table.add_row(name, run.recipe, run.state, epochs, *numbers, f"{minutes}:{seconds:02}")
    stdout.print(table)
    for run in summaries:
        if run.stop_reason:
            stderr.print(f"{run.folder}: {run.stop_reason}")


def print_export(results: Sequence[ExportResult]) -> None:
    """Print a table of exported graphs, with their deviation from PyTorch and their speed, and failed exports."""
    headings = ("modality", "encoder", "MB", "items", "1 - cosine", "ONNX ms", "PyTorch ms", "ratio (range)")
    table = make_table(headings, {"modality", "encoder"})
    for result in results:
        if result.time_ratio is None or result.time_ratio_range is None:
            table.add_row(result.modality, result.encoder, *["–"] * 6)
            continue
        ratio = f"{result.time_ratio:.2f}× ({result.time_ratio_range[0]:.2f}–{result.time_ratio_range[1]:.2f})"
        sizes = (f"{result.megabytes:.1f}", f"{result.num_items}", f"{result.max_cosine_distance:.1e}")
        table.add_row(result.modality, result.encoder, *sizes, f"{result.onnx_ms:.1f}", f"{result.eager_ms:.1f}", ratio)
    stdout.print(table)
    for result in results:
        if result.problem:
            stderr.print(f"{result.modality}: export failed: {result.problem}")


def print_bridge(report: Mapping[str, Any]) -> None:
    """Print how well the two halves of held-out texts find each other, and what the bridge was fitted to."""
    table = make_table(("held-out texts", "R@1", "R@10", "texts"), {"held-out texts"})
    rows = {"image half → audio half": "recall_ab", "audio half → image half": "recall_ba", "chance level": "chance"}
    for title, key in rows.items():
        table.add_row(title, *(f"{report[key][k]:.1f}" for k in (1, 10)), str(report["num_test_texts"]))
    stdout.print(table)
    media = ", ".join(f"{report[f'num_{m}']} of {m}" for m in ("image", "audio") if report[f"num_{m}"])
    stdout.print(
        f"fitted to {report['num_texts']} texts; centres: {media or 'of the texts, because --media was not used'}"
    )
    stdout.print(f"scores: {'standardised' if report['calibrated'] else 'those of the members'}")


def print_encoders(encoders: Sequence[EncoderInfo]) -> None:
    """Print a table of encoders, the origin of their weights, and the reasons why encoders are not ready."""
    headings = ("encoder", "modality", "part", "feature_dim", "parameters", "licence", "ready")
    table = make_table(headings, set(headings) - {"feature_dim", "parameters"})
    for info in encoders:
        parameters = "–" if info.parameters is None else f"{info.parameters / 1e6:.1f} M"
        feature_dim = "–" if info.feature_dim is None else str(info.feature_dim)
        is_ready = "no" if info.unavailable_reason else "yes"
        table.add_row(info.name, info.modality, info.part_name, feature_dim, parameters, info.licence, is_ready)
    stdout.print(table)
    for title, field in (("origin", "origin"), ("not ready", "unavailable_reason")):
        names: dict[str, list[str]] = {}  # encoders with the same text are printed on one line
        for info in encoders:
            names.setdefault(getattr(info, field) or "", []).append(info.name)
        lines = [f"  {', '.join(encoder_names)}: {line}" for line, encoder_names in names.items() if line]
        stdout.print("\n".join([f"{title}:", *lines]) if lines else "all encoders are ready")


def print_plugins(plugins: Sequence[Plugin]) -> None:
    """Print the plug-ins that are installed, and how a recipe names each of them."""
    if plugins:
        stdout.print("\nplug-ins (role, name in a recipe, module and class, package):")
    for plugin in plugins:
        package = f"{plugin.package} {plugin.version}"
        stdout.print(f"{plugin.role:<12} {plugin.name:<12} {plugin.reference}  ({package})")


def print_manifest_summary(summary: Mapping[str, Any]) -> None:
    """Print the counts and problems of a manifest that `manifest.summarise` returns."""
    counts = summary["counts"]
    total = counts["rows"] + counts["unusable"]
    rows = f"{total} rows" if not counts["unusable"] else f"{counts['rows']} of {total} rows usable"
    distinct = counts["unique_captions"]
    captions = f"{counts['captions']} captions"
    captions += f" ({distinct} unique)" if distinct < counts["captions"] else ""
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
        stdout.print("no problems found" if is_complete else "no problems found in the manifest", style="green")
    if counts["files"] and not summary["decoded"]:
        stdout.print("the files were not decoded: add --decode to check them", style="yellow")
