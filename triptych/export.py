"""Each encoder with its projection as an ONNX graph, checked and timed against the space it comes from."""

from __future__ import annotations

import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import Modality, Source
from triptych.data.loader import collate, prepared
from triptych.errors import MediaError, UsageError
from triptych.files import replacing, write_text
from triptych.progress import progress
from triptych.space import Space

NEEDS = ("onnx", "onnxruntime", "onnxscript")
REPORT_FILE = "report.json"
AT_ONCE, REPEATS = 8, 7  # items in a batch, and timings of it
LARGEST = 1_900_000_000  # bytes of one graph with its weights: the format's own limit is 2 GB
INPUTS, MASK, OUTPUT = "inputs", "mask", "embeddings"


@dataclass(frozen=True)
class Exported:
    """One encoder with its projection: its graph, how far that drifts and how fast it is; or why there is none."""

    modality: Modality
    encoder: str
    file: str = ""
    megabytes: float = 0.0
    items: int = 0  # real inputs that both were asked for
    drift: float | None = None  # largest 1 - cosine between the graph's vector and the space's
    eager_ms: float = 0.0  # a batch of AT_ONCE
    onnx_ms: float = 0.0
    ratio: float | None = None  # time of the graph over time of the space, of medians
    spread: tuple[float, float] | None = None  # smallest and largest ratio of neighbouring repeats
    problem: str = ""


def export_onnx(
    space: Space, sources: Mapping[Modality, Sequence[Source]], folder: Path, show: bool = True
) -> list[Exported]:
    """Write a graph for every modality of a space, and a report; `sources` are what both are asked for."""
    lacking = [name for name in NEEDS if find_spec(name) is None]
    if lacking:
        raise UsageError(f"{', '.join(lacking)} not installed; type: pip install 'triptych[export]'")
    space = space.eval().cpu()
    found = []
    with progress("exporting", len(space.modalities), show) as bar:
        for modality in space.modalities:
            found.append(_export(space, modality, sources.get(modality, ()), folder))
            bar.advance(1, modality)
            for name, text in space.encoder(modality).files().items():
                write_text(folder / f"{modality}_{name}", text)
    write_text(folder / REPORT_FILE, json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return found


class _Tower(nn.Module):
    """An encoder and its projection: prepared inputs and mask to embeddings."""

    def __init__(self, space: Space, modality: Modality) -> None:
        super().__init__()
        self.space = space
        self.modality: Modality = modality

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return self.space.locate(self.modality, *self.space.encoder(self.modality)(inputs, mask))


def _export(space: Space, modality: Modality, sources: Sequence[Source], folder: Path) -> Exported:
    encoder, path = space.encoder(modality), folder / f"{modality}.onnx"
    about = Exported(modality, space.recipe.space.encoders[modality].name)
    read = [x for _, x in prepared(sources, encoder) if not isinstance(x, MediaError)]
    if len(read) < 2:
        return _with(about, problem=f"needs two readable examples of {modality}; {len(read)} of {len(sources)} were")
    tower = _Tower(space, modality).eval()
    weights = sum(p.numel() * p.element_size() for p in [*encoder.parameters(), *space.heads[modality].parameters()])
    if weights > LARGEST:
        return _with(about, problem=f"its weights are {weights / 1e9:.1f} GB; a graph holds at most 2")
    try:
        with _quiet(), replacing(path) as temporary:
            _graph(tower, *collate(read[:AT_ONCE])).save(temporary, external_data=False)
        run = _session(path)
        drift = max(_drift(tower, run, *collate(read[i : i + AT_ONCE])) for i in range(0, len(read), AT_ONCE))
    except Exception as error:  # the exporter has dozens of its own, and names the operation it cannot say
        path.unlink(missing_ok=True)
        return _with(about, problem=_reason(error))
    times = _times(tower, run, *collate(read[:AT_ONCE]))
    size = round(path.stat().st_size / 1e6, 2)
    return _with(about, file=path.name, megabytes=size, items=len(read), drift=drift, **times)


def _reason(error: BaseException) -> str:
    """What stopped the exporter, in one line: the first cause, as what it says last is advice to its makers."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).partition("## Exception summary")[2].splitlines() if line.strip()]
    lines = lines or [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _with(about: Exported, **facts: Any) -> Exported:
    return Exported(about.modality, about.encoder, **facts)


def _graph(tower: _Tower, inputs: Tensor, mask: Tensor) -> Any:
    """The graph of a tower: any number of items, and of any length where length varies."""
    many = torch.export.Dim.AUTO
    varies = {0: many} if tower.modality == "image" else {0: many, 1: many}  # pictures come in one size
    with torch.no_grad():
        return torch.onnx.export(
            tower,
            (inputs, mask),
            dynamo=True,
            dynamic_shapes=(varies, varies),
            input_names=[INPUTS, MASK],
            output_names=[OUTPUT],
            verbose=False,
        )


def _session(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    asked = {one.name for one in session.get_inputs()}  # a graph that does not look at the mask does not ask for it

    def run(inputs: Tensor, mask: Tensor) -> Tensor:
        given = {name: x.numpy() for name, x in ((INPUTS, inputs), (MASK, mask)) if name in asked}
        return torch.from_numpy(session.run([OUTPUT], given)[0])

    return run


@torch.inference_mode()
def _drift(tower: _Tower, run: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, mask: Tensor) -> float:
    """Largest 1 - cosine between the two, in double: it is smaller than float32 can tell."""
    cosine = F.cosine_similarity(tower(inputs, mask).double(), run(inputs, mask).double())
    return max(0.0, 1 - cosine.min().item())


@torch.inference_mode()
def _times(tower: _Tower, run: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, mask: Tensor) -> dict[str, Any]:
    """Both on the same batch, alternately, after one round that does not count."""
    taken: dict[str, list[float]] = {"onnx": [], "eager": []}
    for number in range(REPEATS + 1):
        for side, work in (("onnx", run), ("eager", tower)):
            started = time.perf_counter()
            work(inputs, mask)
            if number:
                taken[side].append(1000 * (time.perf_counter() - started))
    onnx, eager = statistics.median(taken["onnx"]), statistics.median(taken["eager"])
    ratios = [a / b for a, b in zip(taken["onnx"], taken["eager"], strict=True)]
    return {"eager_ms": eager, "onnx_ms": onnx, "ratio": onnx / eager, "spread": (min(ratios), max(ratios))}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on libraries that nobody here needs."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
