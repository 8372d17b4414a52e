"""How much features know of the classes: a linear classifier learned on some rows, measured on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from triptych.contracts import Encoder, Modality, Source
from triptych.data.cache import Cache, cache_of
from triptych.data.features import remember
from triptych.data.manifest import Row
from triptych.errors import InputError, ManifestError, UsageError
from triptych.evaluation.classification import (
    Classification,
    Classified,
    classes_of,
    classifiable,
    judge,
    labelled_items,
)
from triptych.progress import Bar, progress
from triptych.space import Space

Of = Literal["embeddings", "features"]  # what the space makes of an item, or what its frozen encoder does
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of the fit to the training items, one by one; see probe
FOLDS = 3  # by which the strength is chosen


@dataclass(frozen=True)
class Known:
    """Sources that could be read, each with its numbers: (N, D)."""

    sources: list[Source]
    numbers: NDArray
    failures: dict[Source, str]


def probe(
    modality: Modality,
    learned: NDArray,
    learned_labels: Sequence[str],
    measured: NDArray,
    measured_labels: Sequence[str],
    strength: float | None = None,
) -> Classification:
    """Logistic regression on standardised features (N, D), learned on some items and measured on others.

    min_W  strength · sum_i -log softmax(W x_i)_(label i) + |W|² / 2

    Source: scikit-learn's LogisticRegression (lbfgs).
    Use when: what features hold is asked, apart from whether names are close to it.
    Beware: unless given, the strength is the one of STRENGTHS that three folds of the training items find best: five
    times three fits. With a wrong one, accuracies of different features cannot be compared.
    """
    classes = sorted(set(learned_labels))
    if len(classes) < 2 or not (strength is None or strength > 0):
        raise InputError(f"{len(classes)} classes, strength = {strength}; need two classes at least, and more than 0")
    unseen = sorted(set(measured_labels) - set(classes))
    if unseen:
        raise UsageError(f"class {unseen[0]!r} is never seen in training: a probe names only what it has learned")
    names = np.array(learned_labels)
    chosen = best_strength(learned, names) if strength is None else strength
    scores = np.asarray(fitted(learned, names, chosen).decision_function(measured))
    if len(classes) == 2:  # then scikit-learn gives the second class's alone
        scores = np.column_stack([-scores, scores])
    label = torch.tensor([classes.index(name) for name in measured_labels])
    return judge(
        modality, f"a linear probe of strength {chosen:g}", classes, torch.from_numpy(np.asarray(scores)), label
    )


def best_strength(numbers: NDArray, names: NDArray) -> float:
    """The strength whose probes name most of the items that each was not fitted to; the smallest of equals."""
    order = np.array([np.count_nonzero(names[:i] == name) for i, name in enumerate(names)])  # within the class
    if np.unique(names, return_counts=True)[1].min() < 2:
        return 1.0  # a class with one item cannot be both learned and measured
    fold = order % FOLDS
    right = [0] * len(STRENGTHS)
    for left_out in np.unique(fold):
        inside, outside = fold != left_out, fold == left_out
        for place, strength in enumerate(STRENGTHS):
            named = fitted(numbers[inside], names[inside], strength).predict(numbers[outside])
            right[place] += int(np.count_nonzero(named == names[outside]))
    return STRENGTHS[right.index(max(right))]


def fitted(numbers: NDArray, names: NDArray, strength: float) -> Any:
    """A classifier fitted to items (N, D) of known classes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    machine = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
    with threadpool_limits(1):  # thousands of small products: on a busy machine threads make them 50 times slower
        return machine.fit(numbers, names)


def probe_space(
    space: Space,
    learned: Sequence[Row],
    measured: Sequence[Row],
    of: Of = "embeddings",
    modalities: Sequence[Modality] | None = None,
    strength: float | None = None,
    show: bool = True,
    cache: Cache | str = "",
) -> Classified:
    """A probe for each modality, on the space's embeddings, or on what its frozen encoders hand to it."""
    classes_of(measured, classes_of(learned))
    found, failures = [], {}
    for modality in classifiable(space, measured, modalities):
        sides = [labelled_items(rows, modality) for rows in (learned, measured)]
        sources = list(dict.fromkeys(source for side in sides for source in side))
        with progress(f"embedding {modality}", len(sources), show) as bar:
            known = (
                frozen_features(space.encoder(modality), sources, cache_of(cache) or Cache.default(), bar)
                if of == "features"
                else _embeddings(space, modality, sources, cache_of(cache), bar)
            )
        failures |= known.failures
        place = {source: i for i, source in enumerate(known.sources)}
        rows, labels = [], []
        for side in sides:
            read = {source: label for source, label in side.items() if source in place}
            rows.append(known.numbers[[place[source] for source in read]])
            labels.append(list(read.values()))
        if labels[0] and labels[1]:
            found.append(probe(modality, rows[0], labels[0], rows[1], labels[1], strength))
    if not found:
        reason = next(iter(failures.values()), "no labelled row to learn from")
        raise ManifestError(f"nothing to probe: {reason}")
    return Classified(found, failures)


def frozen_features(encoder: Encoder, sources: Sequence[Source], cache: Cache, bar: Bar | None = None) -> Known:
    """Mean ⊕ maximum of the parts that a frozen encoder makes of each source, from the cache: (N, 2 · width)."""
    if not encoder.frozen:
        raise UsageError(f"{type(encoder).__name__} is trained with its space: it has no frozen features to probe")
    known = remember(encoder, sources, cache, bar=bar)
    read = [source for source in sources if source in known.place]
    pooled = known.inputs([known.place[source] for source in read], parts=False)[0]
    return Known(read, pooled.flatten(1).numpy(), known.failures)


def _embeddings(space: Space, modality: Modality, sources: list[Source], cache: Cache | None, bar: Bar) -> Known:
    embedded = space.embed(sources, modality, bar=bar, parts=False, cache=cache)
    return Known([sources[i] for i in embedded.read], embedded.features.embedding.numpy(), embedded.failures)
