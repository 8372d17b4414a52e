"""Linear probes: logistic regression on features, fitted on training rows and measured on test rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from triptych.data.cache import Cache, resolve_cache
from triptych.data.features import compute_or_load
from triptych.data.manifest import Row
from triptych.errors import InputError, ManifestError, UsageError
from triptych.evaluation import classification
from triptych.evaluation.classification import Classification, ClassificationResults, measure_accuracy
from triptych.evaluation.items import embed_sources
from triptych.interfaces import Encoder, Modality, Source
from triptych.progress import ProgressBar, track_progress
from triptych.space import Space

FeatureSource = Literal["embeddings", "features"]  # a probe is fitted on embeddings, or on frozen encoder features
INVERSE_REGULARISATIONS = (0.01, 0.1, 1.0, 10.0, 100.0)  # candidate values of scikit-learn's C
NUM_FOLDS = 3  # number of folds of the cross-validation that selects C


@dataclass(frozen=True)
class ProbeFeatures:
    """The features (N, D) of the sources that could be read, and the errors of unreadable sources."""

    sources: list[Source]
    matrix: NDArray
    failures: dict[Source, str]


def probe(
    modality: Modality,
    train_features: NDArray,
    train_labels: Sequence[str],
    test_features: NDArray,
    test_labels: Sequence[str],
    inverse_regularisation: float | None = None,
) -> Classification:
    """Fit logistic regression on standardised features (N, D), and measure the accuracy on test features.

    min_W  C · sum_i -log softmax(W x_i)_(label i) + |W|² / 2

    Source: scikit-learn's LogisticRegression (lbfgs).
    Use when: you measure how well features separate the classes, independently of the text encoder.
    Beware: if inverse_regularisation (C) is None, 3-fold cross-validation on the training items selects C, which takes
      15 fits. With a badly chosen C, accuracies of different features cannot be compared.
    """
    classes = sorted(set(train_labels))
    if len(classes) < 2 or not (inverse_regularisation is None or inverse_regularisation > 0):
        raise InputError(
            f"{len(classes)} classes, inverse_regularisation = {inverse_regularisation}; need 2 classes and a value > 0"
        )
    unseen = sorted(set(test_labels) - set(classes))
    if unseen:
        problem = f"class {unseen[0]!r} does not occur in the training rows"
        raise UsageError(f"{problem}; a probe predicts only the classes that it was fitted on")
    y, c = np.array(train_labels), inverse_regularisation
    with threadpool_limits(1):  # on a busy machine, several threads are up to 50 times slower for small matrices
        c = select_inverse_regularisation(train_features, y) if c is None else c
        scores = np.asarray(make_classifier(c).fit(train_features, y).decision_function(test_features))
    if len(classes) == 2:  # for two classes, scikit-learn returns only the score of the second class
        scores = np.column_stack([-scores, scores])
    labels = torch.tensor([classes.index(name) for name in test_labels])
    return measure_accuracy(modality, f"a linear probe with C = {c:g}", classes, torch.from_numpy(scores), labels)


def select_inverse_regularisation(features: NDArray, labels: NDArray) -> float:
    """Return the value of C with the best cross-validated accuracy, or the smallest of several best values."""
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    if np.unique(labels, return_counts=True)[1].min() < 2:
        return 1.0  # a class with one item cannot be cross-validated
    # The order of an item is the number of earlier items of the same class.
    order = np.array([np.count_nonzero(labels[:i] == name) for i, name in enumerate(labels)])
    folds = PredefinedSplit(order % NUM_FOLDS)

    def count_correct(c: float) -> int:
        return int(np.count_nonzero(cross_val_predict(make_classifier(c), features, labels, cv=folds) == labels))

    return max(INVERSE_REGULARISATIONS, key=count_correct)


def make_classifier(inverse_regularisation: float) -> Any:
    """Return logistic regression on standardised features, with C = inverse_regularisation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=inverse_regularisation, max_iter=2000))


def probe_space(
    space: Space,
    train_rows: Sequence[Row],
    test_rows: Sequence[Row],
    feature_source: FeatureSource = "embeddings",
    modalities: Sequence[Modality] | None = None,
    inverse_regularisation: float | None = None,
    show_progress: bool = True,
    cache: Cache | str = "",
) -> ClassificationResults:
    """Fit and measure one probe per modality, on the embeddings of a space or on features of its frozen encoders."""
    classification.list_classes(test_rows, classification.list_classes(train_rows))
    results, failures = [], {}
    for modality in classification.select_modalities(space, test_rows, modalities):
        sides = [classification.collect_labels(rows, modality) for rows in (train_rows, test_rows)]
        sources = list(dict.fromkeys(source for side in sides for source in side))
        if feature_source == "features":
            with track_progress(f"embedding {modality}", len(sources), show_progress) as progress:
                feature_cache = resolve_cache(cache) or Cache.default()
                features = compute_frozen_features(space.encoder(modality), sources, feature_cache, progress)
        else:
            embedded = embed_sources(space, sources, modality, show_progress, resolve_cache(cache), with_parts=False)
            read = [sources[i] for i in embedded.indices]
            features = ProbeFeatures(read, embedded.features.embedding.numpy(), embedded.failures)
        failures |= features.failures
        index_of_source = {source: i for i, source in enumerate(features.sources)}
        rows, labels = [], []
        for side in sides:
            readable = {source: label for source, label in side.items() if source in index_of_source}
            rows.append(features.matrix[[index_of_source[source] for source in readable]])
            labels.append(list(readable.values()))
        if labels[0] and labels[1]:
            results.append(probe(modality, rows[0], labels[0], rows[1], labels[1], inverse_regularisation))
    if not results:
        reason = next(iter(failures.values()), "no labelled training row has the modality of the test rows")
        raise ManifestError(f"nothing to probe: {reason}")
    return ClassificationResults(results, failures)


def compute_frozen_features(
    encoder: Encoder, sources: Sequence[Source], cache: Cache, progress: ProgressBar | None = None
) -> ProbeFeatures:
    """Return the mean and the maximum over the parts of each source, concatenated: (N, 2 · feature_dim)."""
    if not encoder.frozen:
        raise UsageError(f"{type(encoder).__name__} is trained with its space and has no frozen features to probe")
    cached = compute_or_load(encoder, sources, cache, progress=progress)
    return ProbeFeatures(list(cached.index_of), cached.pooled.flatten(1).numpy(), cached.failures)
