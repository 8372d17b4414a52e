"""Run a study end to end: read the data, run the fits, write the page."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import UsageError, describe_unknown
from triptych.interfaces import MODALITIES, Modality
from triptych.progress import track_progress
from triptych.studies import STUDIES
from triptych.studies.experiment import Experiment, check_encoders
from triptych.studies.page import write_page
from triptych.studies.result_cache import ResultCache

DEFAULT_ENCODERS: dict[Modality, str] = {"image": "efficientnet_lite0", "audio": "efficientat_mn04", "text": "minilm"}


@dataclass(frozen=True)
class StudyRequest:
    """The settings of a study: its name, its manifest and number of rows, and the frozen encoders."""

    name: str
    manifest: Path
    max_rows: int = 0  # 0 = all training rows
    allow_outside: bool = False
    encoders: Mapping[Modality, str] | None = None


def parse_encoders(overrides: Sequence[str]) -> dict[Modality, str]:
    """Apply overrides such as "audio=soundnet" to the default encoders."""
    encoders: dict[str, str] = {**DEFAULT_ENCODERS}
    for override in overrides:
        modality, _, name = override.partition("=")
        if modality not in MODALITIES:
            raise UsageError(f"--encoder {override}: {describe_unknown('modality', modality, MODALITIES)}")
        encoders[modality] = name
    return {modality: encoders[modality] for modality in DEFAULT_ENCODERS}


def format_command(request: StudyRequest, output_options: Sequence[str], encoder_overrides: Sequence[str]) -> str:
    """Format the command that reproduces a study, for its page: without local folders and without --restart."""
    command = ["triptych", "study", request.name, "--data", request.manifest.name, *output_options]
    command += ["--rows", str(request.max_rows)] if request.max_rows else []
    command += [word for override in encoder_overrides for word in ("--encoder", override)]
    command += ["--allow-outside"] if request.allow_outside else []
    return shlex.join(command)


def run_study(request: StudyRequest, folder: Path, command: str, restart: bool = False) -> Path:
    """Run a study, or resume an interrupted one, and return the path of its page."""
    if request.name not in STUDIES:
        raise UsageError(describe_unknown("study", request.name, STUDIES))
    study = STUDIES[request.name]
    encoder_names = request.encoders or DEFAULT_ENCODERS
    check_encoders(encoder_names)
    results_path = folder / "results" / f"{request.name}.jsonl"
    if restart:
        results_path.unlink(missing_ok=True)
    metadata = {
        "data": hashlib.sha256(request.manifest.read_bytes()).hexdigest()[:16],
        "rows": request.max_rows,
        "encoders": dict(encoder_names),
    }
    # Raises an error if the folder has results of other data, before the features are computed.
    ResultCache(results_path, metadata)
    experiment = Experiment.from_manifest(
        request.manifest, encoder_names, request.max_rows, request.allow_outside, study.list_sources
    )
    with track_progress(request.name, study.count_runs()) as progress:
        result = study.run(experiment, ResultCache(results_path, metadata, progress))
    return write_page(folder, request.name, study, command, result)
