"""Classification without training for it: the class whose name, put into prompts, is closest to a sound or picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.cache import Cache, cache_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.classification import Classified, classes_of, classifiable, judge, labelled_items
from triptych.progress import progress
from triptych.space import Space, blocks

PROMPTS: dict[Modality, tuple[str, ...]] = {
    "audio": ("this is a sound of {}",),
    "image": ("this is a picture of {}",),
}
GAP = "{}"  # where the name of a class goes


def classify(
    space: Space,
    rows: Sequence[Row],
    prompts: Sequence[str] | None = None,
    among: Sequence[str] | None = None,
    modalities: Sequence[Modality] | None = None,
    show: bool = True,
    cache: Cache | str = "",
) -> Classified:
    """Name every labelled sound and picture by the class that its prompts score highest.

    score_ic = mean over prompts p of similarity(item i, p(name of class c)): an ensemble, for every similarity alike
    A class tied with the right one counts against us, so a collapsed space scores nothing.

    among: the classes to choose from; those of the rows unless given. cache: as for `evaluate`.
    """
    space.encoder("text")  # or an error that says what the space does know
    classes, features = classes_of(rows, among), cache_of(cache)
    found, failures = [], {}
    for modality in classifiable(space, rows, modalities):
        texts = check_prompts(prompts or PROMPTS[modality])
        names = [prompt.replace(GAP, words(name)) for prompt in texts for name in classes]
        parts = space.similarity.reads_parts
        said = space.embed([Source("text", name) for name in names], "text", parts=parts, cache=features)
        for reason in said.failures.values():
            raise UsageError(f"a prompt cannot be read: {reason}")
        items = labelled_items(rows, modality)
        with progress(f"embedding {modality}", len(items), show) as bar:
            embedded = space.embed(list(items), modality, bar=bar, parts=parts, cache=features)
        failures |= embedded.failures
        if embedded.read:
            own = list(items.values())
            label = torch.tensor([classes.index(own[i]) for i in embedded.read])
            scores = class_scores(space, embedded.features, modality, said.features, len(classes))
            found.append(judge(modality, f"prompts {', '.join(map(repr, texts))}", classes, scores, label))
    if not found:
        raise ManifestError(f"nothing could be read; the first: {next(iter(failures.values()))}")
    return Classified(found, failures)


@torch.inference_mode()
def class_scores(
    space: Space, items: Features, modality: Modality, prompts: Features, classes: int, block: int = 256
) -> Tensor:
    """Items against classes (N, C), of prompts that come as all classes of the first, all of the second, …"""
    rows = [space.scores(some, modality, prompts, "text") for _, some in blocks(items, block)]
    return torch.cat([row.reshape(len(row), -1, classes).mean(dim=1) for row in rows])


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
