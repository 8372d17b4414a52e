"""Classify the labelled rows of a manifest: zero-shot with prompts, or with a linear probe."""

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
    """The rows to classify, and the method of classification."""

    split: str = "test"
    method: Literal["prompts", "embeddings", "features"] = "prompts"
    prompts: tuple[str, ...] = ()  # prompt templates; if empty, the default prompts are used
    train_split: str = "train"  # the split whose rows a linear probe is fitted on
    modalities: tuple[Modality, ...] = ("audio", "image")
    classes: Literal["split", "all"] = "split"  # the candidate classes are the labels of the split, or of all rows

    def validate(self) -> None:
        """Raise a UsageError if the options contradict each other."""
        if self.method == "prompts":
            return
        if self.prompts:
            raise UsageError(f"--prompt needs --method prompts; a linear probe on {self.method} does not use prompts")
        if self.split in {self.train_split, "all"}:
            problem = f"--split {self.split} and --train-split {self.train_split} share rows"
            raise UsageError(f"{problem}; a linear probe must be measured on rows that it was not fitted on")


def classify_split(run: str | Path, manifest: Manifest, request: ClassifyRequest) -> ClassificationResults:
    """Classify the rows of one split with the space of a run."""
    request.validate()
    rows, space = manifest.split(request.split).rows, load(run)
    modalities = request.modalities if len(request.modalities) == 1 else None
    if request.method != "prompts":
        return probe_space(space, manifest.split(request.train_split).rows, rows, request.method, modalities)
    classes = list(manifest.counts.labels) if request.classes == "all" else None
    return classify(space, rows, request.prompts or None, classes, modalities)
