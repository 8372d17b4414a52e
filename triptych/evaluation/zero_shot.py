"""Zero-shot classification: predict the class whose prompts are most similar to an audio clip or image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.data.cache import Cache, resolve_cache
from triptych.data.manifest import Row
from triptych.errors import ManifestError, UsageError
from triptych.evaluation import classification
from triptych.evaluation.classification import ClassificationResults, measure_accuracy
from triptych.evaluation.items import embed_sources
from triptych.interfaces import Features, Modality, Source, iter_blocks
from triptych.space import Space

PROMPTS: dict[Modality, tuple[str, ...]] = {"audio": ("this is a sound of {}",), "image": ("this is a picture of {}",)}
PLACEHOLDER = "{}"  # the class name replaces the placeholder in a prompt


def classify(
    space: Space,
    rows: Sequence[Row],
    prompts: Sequence[str] | None = None,
    candidate_classes: Sequence[str] | None = None,
    modalities: Sequence[Modality] | None = None,
    show_progress: bool = True,
    cache: Cache | str = "",
) -> ClassificationResults:
    """Classify every labelled audio clip and image by the class whose prompts score highest.

    score_ic = mean over prompts p of similarity(item i, p(name of class c)), a prompt ensemble for any similarity
    Ties with the true class count as errors, so a collapsed space has an accuracy of 0.

    The default candidate classes are the labels of the rows. `evaluate` explains the argument `cache`.
    """
    space.encoder("text")  # raises an error if the space has no text encoder
    classes, feature_cache = classification.list_classes(rows, candidate_classes), resolve_cache(cache)
    results, failures = [], {}
    for modality in classification.select_modalities(space, rows, modalities):
        templates = check_prompts(prompts or PROMPTS[modality])
        prompt_texts = [prompt.replace(PLACEHOLDER, label_to_words(name)) for prompt in templates for name in classes]
        prompt_sources = [Source("text", text) for text in prompt_texts]
        embedded_prompts = embed_sources(space, prompt_sources, "text", show_progress=False, cache=feature_cache)
        for reason in embedded_prompts.failures.values():
            raise UsageError(f"a prompt cannot be read: {reason}")
        items = classification.collect_labels(rows, modality)
        embedded = embed_sources(space, list(items), modality, show_progress, feature_cache)
        failures |= embedded.failures
        if embedded.indices:
            item_labels = list(items.values())
            labels = torch.tensor([classes.index(item_labels[i]) for i in embedded.indices])
            scores = score_classes(space, embedded.features, embedded_prompts.features, len(classes))
            method = f"prompts {', '.join(map(repr, templates))}"
            results.append(measure_accuracy(modality, method, classes, scores, labels))
    if not results:
        raise ManifestError(f"no file could be read; the first error: {next(iter(failures.values()))}")
    return ClassificationResults(results, failures)


@torch.inference_mode()
def score_classes(space: Space, items: Features, prompts: Features, num_classes: int, block_size: int = 256) -> Tensor:
    """Return the scores (N, C) of items and classes. The prompts must be ordered by template, then by class."""
    rows = [space.scores(chunk, prompts) for _, chunk in iter_blocks(items, block_size)]
    return torch.cat([row.reshape(len(row), -1, num_classes).mean(dim=1) for row in rows])


def check_prompts(prompts: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct prompts. Raise UsageError if a prompt has no placeholder."""
    for prompt in prompts:
        if PLACEHOLDER not in prompt:
            problem = f"prompt {prompt!r}: has no {PLACEHOLDER} for the class name"
            raise UsageError(f"{problem}; write 'this is a sound of {PLACEHOLDER}'")
    return tuple(dict.fromkeys(prompts))


def label_to_words(label: str) -> str:
    """Turn a label into words: dog_bark becomes dog bark."""
    return " ".join(label.replace("_", " ").split())
