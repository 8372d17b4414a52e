"""Classification of a manifest's labelled rows: zero-shot by prompts, or with a linear probe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triptych.checkpoint import load
from triptych.data.manifest import Manifest
from triptych.errors import UsageError
from triptych.evaluation.classification import ClassificationResults
from triptych.evaluation.probe import probe_space
from triptych.evaluation.zero_shot import classify
from triptych.interfaces import Modality


@dataclass(frozen=True)
class ClassifyRequest:
    """Which rows to classify, and how."""

    split: str = "test"
    method: Literal["prompts", "embeddings", "features"] = "prompts"
    prompts: tuple[str, ...] = ()  # empty: the default prompts
    train_split: str = "train"  # of a linear probe
    modalities: tuple[Modality, ...] = ("audio", "image")
    classes: Literal["split", "all"] = "split"  # candidate classes: of the split, or of the whole manifest

    def validate(self) -> None:
        """Raise a UsageError if the options contradict each other."""
        if self.method == "prompts":
            return
        if self.prompts:
            raise UsageError(f"--prompt needs --method prompts; a linear probe on {self.method} does not use prompts")
        if self.split in {self.train_split, "all"}:
            raise UsageError(
                f"the probe would learn from rows it is measured on: --split {self.split}, "
                f"--train-split {self.train_split}"
            )


def classify_split(run: str | Path, manifest: Manifest, request: ClassifyRequest) -> ClassificationResults:
    """Classify the rows of one split with the space of a run."""
    request.validate()
    rows, space = manifest.split(request.split).rows, load(run)
    modalities = request.modalities if len(request.modalities) == 1 else None
    if request.method != "prompts":
        return probe_space(space, manifest.split(request.train_split).rows, rows, request.method, modalities)
    classes = list(manifest.counts.labels) if request.classes == "all" else None
    return classify(space, rows, request.prompts or None, classes, modalities)
