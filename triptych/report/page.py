"""Render a report to one self-contained HTML file without scripts or network requests."""

import base64
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import soundfile
from markupsafe import Markup

from triptych import __version__
from triptych.errors import MediaError, UsageError
from triptych.evaluation.significance import Interval
from triptych.evaluation.transitivity import lift_over_chance
from triptych.files import write_text
from triptych.interfaces import Source
from triptych.media import audio, image
from triptych.report import plots
from triptych.report.report_data import ReportData, last_temperatures, report_to_dict
from triptych.starter import is_starter

OBJECTIVE_STATES = {"temperature", "mass", "error", "iterations"}  # logged values that are not terms of the loss
NUM_OPEN = 2  # number of directions whose examples are shown expanded
MAX_SIDE = 192  # maximum length of the longer side of an inlined image, in pixels
MAX_SECONDS, SAMPLE_RATE, FADE_SECONDS = 6.0, 22_050, 0.02  # maximum length, sample rate and fade-out of inlined audio
MAX_BYTES = 12_000_000  # maximum total size of all inlined media


def resolve_report_path(run: str | Path, path: Path | None = None) -> Path:
    """Return the given path of a report, by default RUN-report.html next to the run folder."""
    if path is None:
        # The report of the starter space or a joint model, which have no run folder, is written to the current folder.
        run_path = Path(run)
        beside = run_path.resolve() if run_path.exists() and not is_starter(run) else Path(run_path.name)
        return beside.with_name(f"{beside.stem if run_path.is_file() else beside.name}-report.html")
    if path.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"{path}: a report is one HTML file; name it {path.with_suffix('.html').name}")
    return path


def write_report(report: ReportData, path: Path, max_bytes: int = MAX_BYTES, with_json: bool = False) -> None:
    """Write the page of a report; if `with_json`, also write its numbers to a JSON file of the same name."""
    write_text(path, render_report(report, max_bytes))
    if with_json:
        numbers = json.dumps(report_to_dict(report), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(path.with_suffix(".json"), numbers + "\n")


def render_report(report: ReportData, max_bytes: int = MAX_BYTES) -> str:
    """Return the HTML page of a report, with at most max_bytes of inlined media."""
    loader = jinja2.PackageLoader("triptych.report", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "percent": format_percent,
        "percent_range": format_percent_range,
        "truncate_text": truncate_text,
        "file_name": format_file_name,
        "sum_of": lambda entries, key: sum(entry.get(key, 0) for entry in entries),
    }
    directions = report.evaluation.directions
    captions: dict[str, str] = {}
    for row in report.manifest.rows:
        if row.texts:
            captions.setdefault(row.group, row.texts[0])
    return environment.get_template("page.html").render(
        report=report,
        sections=_list_sections(report),
        best=max(directions, key=lift_over_chance),
        worst=min(directions, key=lift_over_chance),
        captions=captions,
        curves=_list_curves(report.history),
        details=_collect_details(report),
        plots=plots,
        inliner=MediaInliner(max_bytes),
        num_open=NUM_OPEN,
        version=__version__,
    )


def format_percent(fraction: float, interval: Interval | None = None) -> str:
    """Format a fraction in %, with its interval if there is one."""
    if interval is None:
        return f"{100 * fraction:.1f}"
    return Markup("{:.1f} <small>({})</small>").format(100 * fraction, format_percent_range(interval))


def format_percent_range(interval: Interval) -> str:
    """Format the ends of an interval of a fraction in %."""
    return f"{100 * interval.low:.1f}–{100 * interval.high:.1f}"


def truncate_text(text: object, max_chars: int) -> str:
    """Return a text, truncated after max_chars characters."""
    return str(text) if len(str(text)) <= max_chars else f"{str(text)[:max_chars].rstrip()}…"


def format_file_name(source: Source) -> str:
    """Return the name of a file, with the start of the segment if there is one."""
    return source.path.name + ("" if source.start is None else f" at {source.start:g} s")


def _list_sections(report: ReportData) -> dict[str, str]:
    """Return a dict from anchor to title of all sections that are not empty."""
    sections: dict[str, tuple[str, object]] = {
        "retrieval": ("Retrieval", True),
        "ranks": ("Ranks of the best positive", True),
        "examples": ("Examples", [direction for direction in report.examples if any(direction)]),
        "zero-shot": ("Zero-shot classification", report.zero_shot),
        "transitivity": ("Untrained modality pairs", report.transitivity),
        "geometry": ("Geometry of the space", True),
        "matches": ("Softmax and transport plan", report.match_matrices),
        "training": ("Training", report.history),
        "details": ("Details", True),
    }
    return {anchor: title for anchor, (title, content) in sections.items() if content}


def _list_curves(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Return the name, title and logged metrics of each training curve that has values."""
    keys = list(dict.fromkeys(key for entry in history for key in entry))
    terms = [k for k in keys if "(" in k and k.rpartition(".")[2] not in OBJECTIVE_STATES]
    curves = (
        ("loss", "loss", ["loss"]),
        ("terms", "terms of the loss", terms if len(terms) <= len(plots.SERIES) else []),
        ("valid", "validation: mean of R@1, R@5, R@10 in %", ["valid"]),
        ("temperature", "temperature", [k for k in keys if k.endswith(".temperature")]),
    )
    present = ((name, title, [key for key in candidates if key in keys]) for name, title, candidates in curves)
    return [curve for curve in present if curve[2]]


def _collect_details(report: ReportData) -> dict[str, str]:
    recipe, space, counts = report.recipe, report.space, report.manifest.counts
    num_parameters = sum(p.numel() for p in space.parameters())
    num_trained = sum(p.numel() for p in space.parameters() if p.requires_grad)
    objectives = [f"{o.name} ({', '.join(f'{a}–{b}' for a, b in o.pairs)})" for o in recipe.objectives]
    temperatures = last_temperatures(report.history).items()
    command = ["triptych", "report", str(report.run), "--data", str(report.manifest.path), "--split", report.split]
    return {
        "recipe": f"{recipe.name}: {recipe.description}" if recipe.description else recipe.name,
        "objectives": ", ".join(objectives) or "none: a pretrained space",
        "similarity": recipe.space.similarity.name,
        "space": f"{recipe.space.embed_dim} dimensions, {recipe.space.geometry}; "
        f"{num_parameters:,} parameters, {num_trained:,} trained",
        "temperature": ", ".join(f"{'–'.join(sorted(pair))} {value:.4g}" for pair, value in temperatures),
        "data": f"{report.manifest.path.name}, split {report.split}: {counts.rows:,} rows, "
        f"{counts.captions:,} captions, {counts.groups:,} groups",
        "run": report.run.name,
        "fingerprint": report.fingerprint,
        "command": shlex.join(command),
    }


class MediaInliner:
    """Convert sources to data: URIs, up to a total of max_bytes per page."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.remaining_bytes = max_bytes
        self.num_omitted = 0
        self._data_uris: dict[Source, str | None] = {}

    def data_uri(self, source: Source) -> str | None:
        """Return the data: URI of a source, or None if the file cannot be read or the page would exceed max_bytes."""
        if source not in self._data_uris:
            try:
                self._data_uris[source] = encode_image(source) if source.modality == "image" else encode_audio(source)
            except MediaError:
                self._data_uris[source] = None
        uri = self._data_uris[source]
        if uri is None or len(uri) > self.remaining_bytes:
            self.num_omitted += 1
            return None
        self.remaining_bytes -= len(uri)
        return uri


def encode_image(source: Source) -> str:
    """Return a thumbnail as a data: URI, JPEG or PNG, whichever is smaller."""
    thumbnail = image.load_source(source, MAX_SIDE)
    thumbnail.thumbnail((MAX_SIDE, MAX_SIDE))
    candidates = []
    for image_format, settings in (("JPEG", {"quality": 82}), ("PNG", {"optimize": True})):
        buffer = io.BytesIO()
        thumbnail.save(buffer, image_format, **settings)
        candidates.append((len(buffer.getvalue()), image_format, buffer.getvalue()))
    _, image_format, data = min(candidates)
    return _make_data_uri(f"image/{image_format.lower()}", data)


def encode_audio(source: Source) -> str:
    """Return the first seconds of a source as a data: URI of mono MP3, which every browser plays."""
    samples = audio.read_source(source, SAMPLE_RATE, MAX_SECONDS).copy()
    fade = min(len(samples), round(FADE_SECONDS * SAMPLE_RATE))
    samples[len(samples) - fade :] *= [1 - i / fade for i in range(fade)]  # avoids a click at the cut
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), SAMPLE_RATE, format="MP3", subtype="MPEG_LAYER_III")
    return _make_data_uri("audio/mpeg", buffer.getvalue())


def _make_data_uri(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
