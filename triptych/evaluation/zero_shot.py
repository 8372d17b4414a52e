"""Classification without training for it: the class whose name, put into prompts, is closest to a sound or picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.data.cache import Cache, resolve_cache
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.evaluation.classification import (
    ClassificationResults,
    collect_labels,
    list_classes,
    measure_accuracy,
    select_modalities,
)
from triptych.interfaces import Features, Modality, Source
from triptych.progress import track_progress
from triptych.space import Space, iter_blocks

PROMPTS: dict[Modality, tuple[str, ...]] = {
    "audio": ("this is a sound of {}",),
    "image": ("this is a picture of {}",),
}
PLACEHOLDER = "{}"  # where the name of a class goes


def classify(
    space: Space,
    rows: Sequence[Row],
    prompts: Sequence[str] | None = None,
    candidate_classes: Sequence[str] | None = None,
    modalities: Sequence[Modality] | None = None,
    show_progress: bool = True,
    cache: Cache | str = "",
) -> ClassificationResults:
    """Name every labelled sound and picture by the class that its prompts score highest.

    score_ic = mean over prompts p of similarity(item i, p(name of class c)): an ensemble, for every similarity alike
    A class tied with the right one counts against us, so a collapsed space scores nothing.

    among: the classes to choose from; those of the rows unless given. cache: as for `evaluate`.
    """
    space.encoder("text")  # or an error that says what the space does know
    classes, feature_cache = list_classes(rows, candidate_classes), resolve_cache(cache)
    results, failures = [], {}
    for modality in select_modalities(space, rows, modalities):
        templates = check_prompts(prompts or PROMPTS[modality])
        prompt_texts = [prompt.replace(PLACEHOLDER, label_to_words(name)) for prompt in templates for name in classes]
        reads_parts = space.similarity.reads_parts
        embedded_prompts = space.embed(
            [Source("text", name) for name in prompt_texts], "text", with_parts=reads_parts, cache=feature_cache
        )
        for reason in embedded_prompts.failures.values():
            raise UsageError(f"a prompt cannot be read: {reason}")
        items = collect_labels(rows, modality)
        with track_progress(f"embedding {modality}", len(items), show_progress) as progress:
            embedded = space.embed(
                list(items), modality, progress=progress, with_parts=reads_parts, cache=feature_cache
            )
        failures |= embedded.failures
        if embedded.indices:
            item_labels = list(items.values())
            labels = torch.tensor([classes.index(item_labels[i]) for i in embedded.indices])
            scores = score_classes(space, embedded.features, embedded_prompts.features, len(classes))
            results.append(
                measure_accuracy(modality, f"prompts {', '.join(map(repr, templates))}", classes, scores, labels)
            )
    if not results:
        raise ManifestError(f"nothing could be read; the first: {next(iter(failures.values()))}")
    return ClassificationResults(results, failures)


@torch.inference_mode()
def score_classes(space: Space, items: Features, prompts: Features, num_classes: int, block_size: int = 256) -> Tensor:
    """Items against classes (N, C), of prompts that come as all classes of the first, all of the second, …"""
    rows = [space.scores(chunk, prompts) for _, chunk in iter_blocks(items, block_size)]
    return torch.cat([row.reshape(len(row), -1, num_classes).mean(dim=1) for row in rows])


def check_prompts(prompts: Sequence[str]) -> tuple[str, ...]:
    """The prompts, if each has a place for the name of a class."""
    for prompt in prompts:
        if PLACEHOLDER not in prompt:
            raise UsageError(
                f"prompt {prompt!r}: has no {PLACEHOLDER} for the name of a class; write 'this is a sound of {PLACEHOLDER}'"
            )
    return tuple(dict.fromkeys(prompts))


def label_to_words(label: str) -> str:
    """A label as one would say it: dog_bark is dog bark."""
    return " ".join(label.replace("_", " ").split())
