"""Classification accuracy per class and modality, with chance levels and the most frequent confusions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.significance import Interval, bootstrap_intervals
from triptych.interfaces import Modality, Source
from triptych.space import Space

TOP_K = 5  # the k of the top-k accuracy


@dataclass(frozen=True)
class ClassResult:
    """The number of correct predictions for the items of one class."""

    label: str
    num_items: int
    num_correct: int
    most_confused_with: str | None  # the wrong class that is predicted most often for these items

    @property
    def accuracy(self) -> float:
        """The fraction of the items of this class that are classified correctly."""
        return self.num_correct / self.num_items


@dataclass(frozen=True)
class Classification:
    """The classification results for one modality, with chance levels."""

    modality: Modality
    method: str  # description of the classifier
    num_items: int
    accuracy: float
    interval: Interval  # 95% interval of the accuracy
    top5_accuracy: float
    balanced_accuracy: float  # mean of the accuracies of all classes
    chance_level: float  # chance level of the accuracy: 1 / number of classes
    majority_baseline: float  # accuracy if the most frequent class is always predicted
    classes: list[ClassResult]


@dataclass(frozen=True)
class ClassificationResults:
    """The classification results of all modalities, and the files that could not be read."""

    results: list[Classification]
    failures: dict[Source, str]


def measure_accuracy(
    modality: Modality, method: str, classes: Sequence[str], scores: Tensor, labels: Tensor
) -> Classification:
    """Measure accuracies from class scores (N, C) and true class indices (N,). Ties count as wrong predictions."""
    true_score = scores.gather(1, labels[:, None])
    is_other_class = torch.ones_like(scores, dtype=torch.bool).scatter(1, labels[:, None], False)
    rank = 1 + (is_other_class & ~(scores < true_score)).sum(dim=1)
    nearest_other = scores.masked_fill(~is_other_class, -torch.inf).argmax(dim=1)
    results = []
    for class_index, name in enumerate(classes):
        in_class = labels == class_index
        if in_class.any():
            confusions = nearest_other[in_class & (rank > 1)]
            most_confused_with = classes[int(confusions.bincount().argmax())] if len(confusions) else None
            num_correct = int((rank[in_class] == 1).sum())
            results.append(ClassResult(name, int(in_class.sum()), num_correct, most_confused_with))
    is_correct = (rank == 1).double().numpy()
    (interval,) = bootstrap_intervals(is_correct, np.arange(len(is_correct)), [(0.0, 1.0)])
    return Classification(
        modality=modality,
        method=method,
        num_items=len(labels),
        accuracy=float(is_correct.mean()),
        interval=interval,
        top5_accuracy=float((rank <= TOP_K).double().mean()),
        balanced_accuracy=sum(result.accuracy for result in results) / len(results),
        chance_level=1 / len(classes),
        majority_baseline=max(result.num_items for result in results) / len(labels),
        classes=results,
    )


def collect_labels(rows: Sequence[Row], modality: Modality) -> dict[Source, str]:
    """Return the label of each file of a modality. Raise ManifestError if a file has two labels."""
    labels: dict[Source, str] = {}
    for row in rows:
        if modality in row.modalities and row.label is not None:
            source = source_of(row, modality)
            if labels.setdefault(source, row.label) != row.label:
                problem = f"{source}: labelled {labels[source]!r} in one row, but {row.label!r} in row {row.number}"
                raise ManifestError(f"{problem}; give the file one label")
    return labels


def list_classes(rows: Sequence[Row], candidate_classes: Sequence[str] | None = None) -> list[str]:
    """Return the sorted candidate classes (default: the labels of the rows). Each label must be a candidate class."""
    row_labels = {row.label for row in rows if row.label is not None}
    classes = sorted(set(candidate_classes) if candidate_classes else row_labels)
    if len(classes) < 2:
        listed = ", ".join(classes) or "none"
        raise ManifestError(f"fewer than two candidate classes ({listed}); label the rows with at least two classes")
    for row in rows:
        if row.label is not None and row.label not in classes:
            raise UsageError(f"row {row.number}: the label {row.label!r} is not among the candidate classes")
    return classes


def select_modalities(space: Space, rows: Sequence[Row], requested: Sequence[Modality] | None) -> list[Modality]:
    """Return the requested modalities, or by default all usable modalities except text.

    A modality is usable if the space can encode the modality and a labelled row has the modality. Raise UsageError if a
    requested modality is not usable.
    """
    labelled_modalities = {modality for row in rows if row.label is not None for modality in row.modalities}
    supported: list[Modality] = [m for m in space.modalities if m != "text" and m in labelled_modalities]
    for modality in requested or ():
        if modality not in supported:
            raise UsageError(f"{modality} cannot be classified; available modalities: {', '.join(supported) or 'none'}")
    if not supported:
        raise ManifestError("nothing to classify: no labelled row has audio or an image that this space can encode")
    return [m for m in supported if not requested or m in requested]
