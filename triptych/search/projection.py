"""Project the keys of a collection to two dimensions, all modalities together."""

from collections.abc import Sequence

import numpy as np

TSNE_LANDMARKS = 1500  # maximum number of items that t-SNE is fitted to; other items are interpolated
NEIGHBOURS = 5  # number of nearest landmarks from which the point of another item is interpolated
PCA_COMPONENTS = 32  # number of dimensions that PCA passes to t-SNE


def project_2d(keys: Sequence[np.ndarray], seed: int = 0) -> list[np.ndarray]:
    """Project the keys of each modality (M_i, S) to points (M_i, 2) between 0 and 1.

    The modalities of a joint space occupy separate regions (the modality gap), so the keys of each modality are first
    centred and scaled separately. PCA and t-SNE (van der Maaten and Hinton 2008) are applied next, with a fixed seed.
    """
    counts = [len(group) for group in keys]
    all_keys = np.concatenate([_standardise(group) for group in keys]) if sum(counts) else np.empty((0, 2))
    if len(all_keys) < 4:
        points = np.tile(np.linspace(0.3, 0.7, max(1, len(all_keys)))[: len(all_keys), None], (1, 2))
    else:
        points = _scale_to_unit_square(_fit_tsne(_reduce_by_pca(all_keys), seed))
    return np.split(points, np.cumsum(counts)[:-1])


def _standardise(keys: np.ndarray) -> np.ndarray:
    if not len(keys):
        return keys
    centred = keys - keys.mean(axis=0)
    return centred / max(1e-9, float(np.sqrt((centred**2).sum(axis=1).mean())))


def _reduce_by_pca(keys: np.ndarray) -> np.ndarray:
    """Return the coordinates of the keys along the first principal components: (M, PCA_COMPONENTS)."""
    centred = keys - keys.mean(axis=0)
    sample = centred if len(centred) <= 10_000 else centred[:: len(centred) // 10_000]
    _, vectors = np.linalg.eigh(sample.T @ sample)
    return centred @ vectors[:, -min(PCA_COMPONENTS, keys.shape[1]) :]


def _fit_tsne(keys: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE  # slow to import

    order = np.random.default_rng(seed).permutation(len(keys))
    landmarks, others = order[:TSNE_LANDMARKS], order[TSNE_LANDMARKS:]
    perplexity = min(30.0, (len(landmarks) - 1) / 3)
    layout = TSNE(2, perplexity=perplexity, init="pca", max_iter=500, random_state=seed, n_jobs=1)
    points = np.empty((len(keys), 2))
    points[landmarks] = layout.fit_transform(keys[landmarks].astype(np.float32))
    for first in range(0, len(others), 2000):
        block = others[first : first + 2000]
        x, y = keys[block], keys[landmarks]
        squared_distances = (x**2).sum(1)[:, None] - 2 * x @ y.T + (y**2).sum(1)
        neighbours = np.argpartition(squared_distances, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        weight = 1 / (1e-6 + np.take_along_axis(squared_distances, neighbours, axis=1).clip(0))
        points[block] = (points[landmarks][neighbours] * weight[:, :, None]).sum(1) / weight.sum(1, keepdims=True)
    return points


def _scale_to_unit_square(points: np.ndarray) -> np.ndarray:
    """Scale both axes to the range 0.03 to 0.97."""
    low, high = points.min(axis=0), points.max(axis=0)
    return 0.03 + 0.94 * (points - low) / np.maximum(high - low, 1e-9)
