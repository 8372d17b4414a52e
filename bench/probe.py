"""How much the audio encoders hear: a linear probe on ESC-50's five official folds, 2,000 clips of 50 classes."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np

from tests.real_data import esc50_clips, find, yamnet_weights
from triptych.contracts import Encoder, Source
from triptych.data.cache import Cache
from triptych.data.features import remember
from triptych.encoders.soundnet import SoundNet
from triptych.encoders.yamnet import YAMNet
from triptych.progress import progress

FOLDS = range(1, 6)
STRENGTH = 0.01  # of the probe's fit to the training folds; its inverse pulls the weights to zero


def features(encoder: Encoder, clips: list[Path]) -> np.ndarray:
    """Mean ⊕ max of each clip's parts, from the cache: (clips, 2 · width)."""
    sources = [Source("audio", clip) for clip in clips]
    with progress(type(encoder).__name__, len(sources)) as bar:
        known = remember(encoder, sources, Cache.default(), bar=bar)
    for reason in known.failures.values():
        sys.exit(reason)
    return known.inputs([known.place[source] for source in sources], parts=False)[0].flatten(1).numpy()


def accuracies(found: np.ndarray, folds: np.ndarray, classes: np.ndarray) -> list[float]:
    """Of each fold, the share of clips that a linear classifier of the other four names rightly."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    shares = []
    for fold in FOLDS:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=1000))
        probe.fit(found[folds != fold], classes[folds != fold])
        shares.append(float(probe.score(found[folds == fold], classes[folds == fold])))
    return shares


def main() -> None:
    """The accuracy of every fold, for each audio encoder whose weights are at hand."""
    folder = find("esc50")
    if folder is None:
        print("no esc50 here: set TRIPTYCH_DATA to the folder that holds it")
        return
    clips, folds, classes, _ = zip(*esc50_clips(folder), strict=True)
    encoders = {
        "yamnet": lambda: YAMNet(weights=yamnet_weights()),
        "soundnet pool5": lambda: SoundNet(layer="pool5"),
        "soundnet conv7": lambda: SoundNet(layer="conv7"),
    }
    for name, make in encoders.items():
        found = features(make(), list(clips))
        shares = accuracies(found, np.array(folds), np.array(classes))
        each = "  ".join(f"{100 * share:.1f}" for share in shares)
        print(f"{name:<16}{100 * statistics.mean(shares):.1f} %   ({each})", flush=True)
