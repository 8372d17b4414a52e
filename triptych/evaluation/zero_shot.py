"""Classification without training for it: the class whose name, put into prompts, is closest to a sound or picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.cache import Cache
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.progress import progress
from triptych.space import Space, blocks

PROMPTS: dict[Modality, tuple[str, ...]] = {
    "audio": ("this is a sound of {}",),
    "image": ("this is a picture of {}",),
}
GAP = "{}"  # where the name of a class goes
TOP = 5
NORMAL_95 = 1.959964


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
    prompts: tuple[str, ...]
    items: int
    accuracy: float
    interval: tuple[float, float]  # 95%, of the accuracy
    top5: float
    balanced: float  # the mean of the classes' accuracies: a frequent class counts no more than a rare one
    chance: float  # 1 / classes
    largest: float  # what always naming the most frequent class would give
    classes: list[ClassResult]


@dataclass(frozen=True)
class ZeroShot:
    """Every modality that could be classified, and the files that could not be read."""

    found: list[Classification]
    failures: dict[Source, str]


def classify(
    space: Space,
    rows: Sequence[Row],
    prompts: Sequence[str] | None = None,
    among: Sequence[str] | None = None,
    modalities: Sequence[Modality] | None = None,
    show: bool = True,
    cache: Cache | None = None,
) -> ZeroShot:
    """Name every labelled sound and picture by the class that its prompts score highest.

    score_ic = mean over prompts p of similarity(item i, p(name of class c)): an ensemble, for every similarity alike
    A class tied with the right one counts against us, so a collapsed space scores nothing.

    among: the classes to choose from; those of the rows unless given.
    """
    labelled = [row for row in rows if row.label is not None]
    classes = sorted(set(among or ()) or {row.label for row in labelled if row.label is not None})
    if len(classes) < 2:
        raise ManifestError(f"classes to choose from: {', '.join(classes) or 'none'}; give rows a label, two at least")
    for row in labelled:
        if row.label not in classes:
            raise UsageError(
                f"row {row.number} is labelled {row.label!r}, which is not among the classes to choose from"
            )
    found, failures = [], {}
    for modality in _classified(space, labelled, modalities):
        texts = check_prompts(prompts or PROMPTS[modality])
        names = [prompt.replace(GAP, words(name)) for prompt in texts for name in classes]
        parts = space.similarity.reads_parts
        said = space.embed([Source("text", name) for name in names], "text", parts=parts, cache=cache)
        for reason in said.failures.values():
            raise UsageError(f"a prompt cannot be read: {reason}")
        items = _items(labelled, modality)
        with progress(f"embedding {modality}", len(items), show) as bar:
            embedded = space.embed(list(items), modality, bar=bar, parts=parts, cache=cache)
        failures |= embedded.failures
        if embedded.read:
            own = list(items.values())
            label = torch.tensor([classes.index(own[i]) for i in embedded.read])
            scores = class_scores(space, embedded.features, modality, said.features, len(classes))
            found.append(judge(modality, texts, classes, scores, label))
    if not found:
        raise ManifestError(
            f"nothing could be read of {len(labelled)} rows; the first: {next(iter(failures.values()))}"
        )
    return ZeroShot(found, failures)


@torch.inference_mode()
def class_scores(
    space: Space, items: Features, modality: Modality, prompts: Features, classes: int, block: int = 256
) -> Tensor:
    """Items against classes (N, C), of prompts that come as all classes of the first, all of the second, …"""
    rows = [space.scores(some, modality, prompts, "text") for _, some in blocks(items, block)]
    return torch.cat([row.reshape(len(row), -1, classes).mean(dim=1) for row in rows])


def judge(
    modality: Modality, prompts: Sequence[str], classes: Sequence[str], scores: Tensor, label: Tensor
) -> Classification:
    """What scores (N, C) say of items whose classes (N,) are known."""
    own = scores.gather(1, label[:, None])
    others = torch.ones_like(scores, dtype=torch.bool).scatter(1, label[:, None], False)
    rank = 1 + (others & ~(scores < own)).sum(dim=1)  # ties count against us
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
    right = int((rank == 1).sum())
    return Classification(
        modality=modality,
        prompts=tuple(prompts),
        items=len(label),
        accuracy=right / len(label),
        interval=wilson(right, len(label)),
        top5=float((rank <= TOP).double().mean()),
        balanced=sum(result.accuracy for result in results) / len(results),
        chance=1 / len(classes),
        largest=max(result.items for result in results) / len(label),
        classes=results,
    )


def wilson(right: int, items: int) -> tuple[float, float]:
    """Between what shares the true one lies with 95% confidence, if items are independent (Wilson's score interval).

    (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    """
    p, z2 = right / items, NORMAL_95**2 / items
    middle, reach = p + z2 / 2, NORMAL_95 * math.sqrt(p * (1 - p) / items + z2 / (4 * items))
    return max(0.0, (middle - reach) / (1 + z2)), min(1.0, (middle + reach) / (1 + z2))


def check_prompts(prompts: Sequence[str]) -> tuple[str, ...]:
    """The prompts, if each has a place for the name of a class."""
    for prompt in prompts:
        if GAP not in prompt:
            raise UsageError(
                f"prompt {prompt!r}: has no {GAP} for the name of a class; write 'this is a sound of {GAP}'"
            )
    return tuple(dict.fromkeys(prompts))


def words(label: str) -> str:
    """A label as one would say it: dog_bark is dog bark."""
    return " ".join(label.replace("_", " ").split())


def _items(rows: Sequence[Row], modality: Modality) -> dict[Source, str]:
    """Each file once, with its class."""
    found: dict[Source, str] = {}
    for row in rows:
        if modality in row.modalities and row.label is not None:
            source = source_of(row, modality)
            if found.setdefault(source, row.label) != row.label:
                raise ManifestError(
                    f"{source}: labelled {found[source]!r} and (row {row.number}) {row.label!r}; one item, one class"
                )
    return found


def _classified(space: Space, rows: Sequence[Row], wanted: Sequence[Modality] | None) -> list[Modality]:
    """The modalities that are there to be classified by texts."""
    space.encoder("text")  # or an error that says what the space does know
    there = {modality for row in rows for modality in row.modalities}
    able: list[Modality] = [m for m in space.modalities if m != "text" and m in there]
    for modality in wanted or ():
        if modality not in able:
            raise UsageError(f"{modality} cannot be classified here; what can: {', '.join(able) or 'nothing'}")
    if not able:
        raise ManifestError("nothing to classify: no labelled row has a sound or picture that this space knows")
    return [m for m in able if not wanted or m in wanted]
