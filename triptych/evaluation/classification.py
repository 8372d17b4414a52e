"""How well items were named: accuracies, beside what guessing gives, and what is taken for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.contracts import Modality, Source
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.significance import Interval, intervals
from triptych.space import Space

TOP = 5


@dataclass(frozen=True)
class ClassResult:
    """How the items of one class were named."""

    label: str
    items: int
    right: int
    confused: str | None  # the wrong class its items were given most often

    @property
    def accuracy(self) -> float:
        """The share that was named rightly."""
        return self.right / self.items


@dataclass(frozen=True)
class Classification:
    """How the items of one modality were named, beside what guessing gives."""

    modality: Modality
    by: str  # what named them
    items: int
    accuracy: float
    interval: Interval  # 95%, of the accuracy
    top5: float
    balanced: float  # the mean of the classes' accuracies: a frequent class counts no more than a rare one
    chance: float  # 1 / classes
    largest: float  # what always naming the most frequent class would give
    classes: list[ClassResult]


@dataclass(frozen=True)
class Classified:
    """Every modality that could be classified, and the files that could not be read."""

    found: list[Classification]
    failures: dict[Source, str]


def judge(modality: Modality, by: str, classes: Sequence[str], scores: Tensor, label: Tensor) -> Classification:
    """What scores (N, C) say of items whose classes (N,) are known. A tie counts against us."""
    own = scores.gather(1, label[:, None])
    others = torch.ones_like(scores, dtype=torch.bool).scatter(1, label[:, None], False)
    rank = 1 + (others & ~(scores < own)).sum(dim=1)
    named = scores.masked_fill(~others, -torch.inf).argmax(dim=1)  # the closest wrong class
    results = []
    for place, name in enumerate(classes):
        mine = label == place
        if mine.any():
            wrong: Counter[int] = Counter(named[mine & (rank > 1)].tolist())
            usual = [classes[c] for c in sorted(wrong, key=lambda c: (-wrong[c], c))[:1]]
            results.append(
                ClassResult(
                    label=name,
                    items=int(mine.sum()),
                    right=int((rank[mine] == 1).sum()),
                    confused=usual[0] if usual else None,
                )
            )
    right = (rank == 1).double().numpy()
    (interval,) = intervals(right, np.arange(len(right)), [(0.0, 1.0)])
    return Classification(
        modality=modality,
        by=by,
        items=len(label),
        accuracy=float(right.mean()),
        interval=interval,
        top5=float((rank <= TOP).double().mean()),
        balanced=sum(result.accuracy for result in results) / len(results),
        chance=1 / len(classes),
        largest=max(result.items for result in results) / len(label),
        classes=results,
    )


def labelled_items(rows: Sequence[Row], modality: Modality) -> dict[Source, str]:
    """Each labelled file once, with its class."""
    found: dict[Source, str] = {}
    for row in rows:
        if modality in row.modalities and row.label is not None:
            source = source_of(row, modality)
            if found.setdefault(source, row.label) != row.label:
                raise ManifestError(
                    f"{source}: labelled {found[source]!r} and (row {row.number}) {row.label!r}; one item, one class"
                )
    return found


def classes_of(rows: Sequence[Row], among: Sequence[str] | None = None) -> list[str]:
    """The classes to choose from, in order: those of the rows, or those given, if they have all of the rows'."""
    own = {row.label for row in rows if row.label is not None}
    classes = sorted(set(among) if among else own)
    if len(classes) < 2:
        raise ManifestError(f"classes to choose from: {', '.join(classes) or 'none'}; give rows a label, two at least")
    for row in rows:
        if row.label is not None and row.label not in classes:
            raise UsageError(f"row {row.number}: {row.label!r} is not among the classes to choose from")
    return classes


def classifiable(space: Space, rows: Sequence[Row], wanted: Sequence[Modality] | None) -> list[Modality]:
    """The modalities of a space, text aside, that labelled rows have; all of them, or those wanted."""
    there = {modality for row in rows if row.label is not None for modality in row.modalities}
    able: list[Modality] = [m for m in space.modalities if m != "text" and m in there]
    for modality in wanted or ():
        if modality not in able:
            raise UsageError(f"{modality} cannot be classified here; what can: {', '.join(able) or 'nothing'}")
    if not able:
        raise ManifestError("nothing to classify: no labelled row has a sound or picture that this space knows")
    return [m for m in able if not wanted or m in wanted]
