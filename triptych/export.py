"""Export each encoder and its projection as an ONNX graph, and compare the graph with PyTorch."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.checkpoint import resolve_path
from triptych.data import manifest
from triptych.data.loader import collate, prepare_sources, sources_of
from triptych.devices import check_onnx_packages
from triptych.errors import MediaError, UsageError
from triptych.execution.onnx_graph import export_graph, open_session
from triptych.files import atomic_write, write_text
from triptych.interfaces import Modality, Source
from triptych.progress import track_progress
from triptych.space import Space
from triptych.starter import is_starter

REPORT_FILE = "report.json"
BATCH_SIZE, REPEATS = 8, 7  # the speed comparison runs one batch of 8 inputs 7 times
NUM_EXAMPLES = 64  # the maximum number of inputs per modality for comparing ONNX with PyTorch
MAX_GRAPH_GB = 1.9  # limit for the weights in GB; the ONNX format allows 2 GB per graph
OUTPUT_NAME = "embeddings"


@dataclass(frozen=True)
class ExportResult:
    """The accuracy and speed of the exported graph of one modality, or the reason why the export failed."""

    modality: Modality
    encoder: str
    file: str = ""
    megabytes: float = 0.0
    num_items: int = 0  # the number of inputs that were compared
    max_cosine_distance: float | None = None  # the largest 1 - cosine between ONNX and PyTorch embeddings
    eager_ms: float = 0.0  # the median time of one batch in PyTorch, in ms
    onnx_ms: float = 0.0  # the median time of the same batch in ONNX Runtime, in ms
    time_ratio: float | None = None  # onnx_ms / eager_ms
    time_ratio_range: tuple[float, float] | None = None  # the smallest and the largest ratio of all repeats
    problem: str = ""  # the reason why the export failed; "" if the export succeeded


def export_onnx(
    space: Space, sources: Mapping[Modality, Sequence[Source]], folder: Path, show_progress: bool = True
) -> list[ExportResult]:
    """Write a report and an ONNX graph for each modality of a space, compared with PyTorch on `sources`."""
    check_onnx_packages()
    space = space.eval().cpu()
    results = []
    with track_progress("exporting", len(space.modalities), show_progress) as progress:
        for modality in space.modalities:
            results.append(_export_modality(space, modality, sources.get(modality, ()), folder))
            progress.advance(1, modality)
            for name, text in space.encoder(modality).extra_files().items():
                write_text(folder / f"{modality}_{name}", text)
    write_text(folder / REPORT_FILE, json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return results


def default_folder(run: str | Path) -> Path:
    """Return the default output folder: NAME-onnx next to the run folder or space file NAME.

    The starter space and a joint model on the Hub have no run folder: the output is written to the current folder.
    """
    if is_starter(run) or not Path(run).expanduser().exists():
        return Path(f"{Path(run).stem}-onnx")
    checkpoint_path = resolve_path(run)
    folder = checkpoint_path if checkpoint_path.is_dir() else checkpoint_path.parent
    return folder.with_name(f"{Path(run).resolve().stem}-onnx")


def load_examples(
    space: Space, manifest_path: Path | None = None, allow_outside: bool = False
) -> dict[Modality, list[Source]]:
    """Return sources of each modality from a manifest (default: the recipe's), preferably from the test split."""
    config = space.recipe.data
    path = manifest_path or (Path(config.manifest) if config.manifest else None)
    if path is None or not path.exists():
        raise UsageError(f"the manifest of the recipe ({path}) is missing; give --data MANIFEST with some examples")
    table = manifest.read(path, allow_outside or config.allow_outside)
    rows = table.split(config.test_split).rows if config.test_split in table.counts.splits else table.rows
    return {
        m: list(dict.fromkeys(s for row in rows if m in row.modalities for s in sources_of(row, m)))[:NUM_EXAMPLES]
        for m in space.modalities
    }


class _Tower(nn.Module):
    """An encoder and its projection as one module, which maps prepared inputs and their mask to embeddings."""

    def __init__(self, space: Space, modality: Modality) -> None:
        super().__init__()
        self.space = space
        self.modality: Modality = modality

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return self.space.project(self.modality, *self.space.encoder(self.modality)(inputs, mask))


def _export_modality(space: Space, modality: Modality, sources: Sequence[Source], folder: Path) -> ExportResult:
    encoder, path = space.encoder(modality), folder / f"{modality}.onnx"
    make_result = partial(ExportResult, modality, space.recipe.space.encoders[modality].name)
    inputs = [x for _, x in prepare_sources(sources, encoder) if not isinstance(x, MediaError)]
    if len(inputs) < 2:
        return make_result(problem=f"needs two readable examples of {modality}; got {len(inputs)} of {len(sources)}")
    tower = _Tower(space, modality).eval()
    weights = [*encoder.parameters(), *space.heads[modality].parameters()]
    gigabytes = sum(p.numel() * p.element_size() for p in weights) / 1e9
    if gigabytes > MAX_GRAPH_GB:
        return make_result(problem=f"the weights are {gigabytes:.1f} GB; the limit of an ONNX graph is 2 GB")
    batches = [collate(inputs[i : i + BATCH_SIZE]) for i in range(0, len(inputs), BATCH_SIZE)]
    try:
        with atomic_write(path) as temp_path:
            graph = export_graph(tower, *batches[0], [OUTPUT_NAME], has_dynamic_length=modality != "image")
            graph.save(temp_path, external_data=False)
        session = open_session(path, [OUTPUT_NAME])

        def run(inputs: Tensor, mask: Tensor) -> Tensor:
            return session(inputs, mask)[0]

        distance = max(_max_cosine_distance(tower, run, *batch) for batch in batches)
    except Exception as error:  # the exporter raises dozens of error types
        path.unlink(missing_ok=True)
        return make_result(problem=_summarise_error(error))
    times = _measure_times(tower, run, *batches[0])
    size = round(path.stat().st_size / 1e6, 2)
    return make_result(path.name, size, len(inputs), distance, **times)


def _summarise_error(error: BaseException) -> str:
    """Return the root cause of an exporter error in one line, without the exporter's advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).partition("## Exception summary")[2].splitlines() if line.strip()]
    lines = lines or [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


@torch.inference_mode()
def _max_cosine_distance(tower: _Tower, run: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, mask: Tensor) -> float:
    """Return the largest 1 - cosine between ONNX and PyTorch embeddings, in float64 because float32 is too coarse."""
    cosine = F.cosine_similarity(tower(inputs, mask).double(), run(inputs, mask).double())
    return max(0.0, 1 - cosine.min().item())


@torch.inference_mode()
def _measure_times(
    tower: _Tower, run: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, mask: Tensor
) -> dict[str, Any]:
    """Time ONNX Runtime and PyTorch alternately on the same batch, after one warm-up run of each."""
    milliseconds: dict[str, list[float]] = {"onnx": [], "eager": []}
    for repeat in range(REPEATS + 1):
        for runtime, compute in (("onnx", run), ("eager", tower)):
            start_time = time.perf_counter()
            compute(inputs, mask)
            if repeat:
                milliseconds[runtime].append(1000 * (time.perf_counter() - start_time))
    onnx, eager = statistics.median(milliseconds["onnx"]), statistics.median(milliseconds["eager"])
    ratios = [a / b for a, b in zip(milliseconds["onnx"], milliseconds["eager"], strict=True)]
    time_ratio_range = min(ratios), max(ratios)
    return {"eager_ms": eager, "onnx_ms": onnx, "time_ratio": onnx / eager, "time_ratio_range": time_ratio_range}
