"""A collection on a plane: what is alike lies together, whatever its modality."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LANDMARKS = 1500  # items that are laid out by t-SNE; the others are put among those most like them
NEIGHBOURS = 5
WIDE = 32  # directions that are kept before


def project(keys: Sequence[np.ndarray], seed: int = 0) -> list[np.ndarray]:
    """Keys of each modality (M_i, S) to places (M_i, 2) within 0 and 1.

    In a joint space each modality fills a region of its own; so each is centred and scaled by itself first, and what
    remains is what things have in common. Then principal components and t-SNE (van der Maaten and Hinton 2008), with
    a fixed seed: the same collection has the same map.
    """
    counts = [len(some) for some in keys]
    everything = np.concatenate([_centred(some) for some in keys]) if sum(counts) else np.empty((0, 2))
    if len(everything) < 4:
        places = np.tile(np.linspace(0.3, 0.7, max(1, len(everything)))[: len(everything), None], (1, 2))
    else:
        places = _scaled(_laid_out(_condensed(everything), seed))
    return np.split(places, np.cumsum(counts)[:-1])


def _centred(keys: np.ndarray) -> np.ndarray:
    moved = keys - keys.mean(axis=0) if len(keys) else keys
    return moved / max(1e-9, float(np.sqrt((moved**2).sum(axis=1).mean()))) if len(keys) else moved


def _condensed(keys: np.ndarray) -> np.ndarray:
    """The principal components, fewer and without noise."""
    centred = keys - keys.mean(axis=0)
    sample = centred if len(centred) <= 10_000 else centred[:: len(centred) // 10_000]
    _, vectors = np.linalg.eigh(sample.T @ sample)
    return centred @ vectors[:, -min(WIDE, keys.shape[1]) :]


def _laid_out(keys: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE  # takes a second to load

    order = np.random.default_rng(seed).permutation(len(keys))
    chosen, rest = order[:LANDMARKS], order[LANDMARKS:]
    perplexity = min(30.0, (len(chosen) - 1) / 3)
    layout = TSNE(2, perplexity=perplexity, init="pca", max_iter=500, random_state=seed, n_jobs=1)
    places = np.empty((len(keys), 2))
    places[chosen] = layout.fit_transform(keys[chosen].astype(np.float32))
    for first in range(0, len(rest), 2000):
        some = rest[first : first + 2000]
        gaps = (keys[some] ** 2).sum(1)[:, None] - 2 * keys[some] @ keys[chosen].T + (keys[chosen] ** 2).sum(1)
        near = np.argpartition(gaps, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        weight = 1 / (1e-6 + np.take_along_axis(gaps, near, axis=1).clip(0))
        places[some] = (places[chosen][near] * weight[:, :, None]).sum(1) / weight.sum(1, keepdims=True)
    return places


def _scaled(places: np.ndarray) -> np.ndarray:
    """Within 0.03 and 0.97, both directions filled."""
    low, high = places.min(axis=0), places.max(axis=0)
    return 0.03 + 0.94 * (places - low) / np.maximum(high - low, 1e-9)
