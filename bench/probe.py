"""How much the audio encoders hear: a linear probe on ESC-50's five official folds, 2,000 clips of 50 classes."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.real_data import esc50_clips, find, yamnet_weights
from triptych.contracts import Encoder, Source
from triptych.data.cache import Cache
from triptych.encoders.soundnet import SoundNet
from triptych.encoders.yamnet import YAMNet
from triptych.evaluation.probe import frozen_features, probe
from triptych.progress import progress

FOLDS = range(1, 6)
STRENGTH = 0.01  # chosen once: to choose it anew for each fold would take fifteen times as long


def accuracies(encoder: Encoder, clips: list[Path], folds: tuple[int, ...], classes: tuple[str, ...]) -> list[float]:
    """Of each fold, the share of clips that a linear classifier of the other four names rightly."""
    sources = [Source("audio", clip) for clip in clips]
    with progress(type(encoder).__name__, len(sources)) as bar:
        known = frozen_features(encoder, sources, Cache.default(), bar)
    for reason in known.failures.values():
        sys.exit(reason)
    shares = []
    for fold in FOLDS:
        learned, measured = ([i for i, own in enumerate(folds) if (own != fold) == side] for side in (True, False))
        ours, theirs = ([classes[i] for i in side] for side in (learned, measured))
        shares.append(probe("audio", known.numbers[learned], ours, known.numbers[measured], theirs, STRENGTH).accuracy)
    return shares


def main() -> None:
    """The accuracy of every fold, for each audio encoder whose weights are at hand."""
    folder = find("esc50")
    if folder is None:
        print("no esc50 here: set TRIPTYCH_DATA to the folder that holds it")
        return
    clips, folds, _, classes = zip(*esc50_clips(folder), strict=True)
    encoders = {
        "yamnet": lambda: YAMNet(weights=yamnet_weights()),
        "soundnet pool5": lambda: SoundNet(layer="pool5"),
        "soundnet conv7": lambda: SoundNet(layer="conv7"),
    }
    for name, make in encoders.items():
        shares = accuracies(make(), list(clips), folds, classes)
        each = "  ".join(f"{100 * share:.1f}" for share in shares)
        print(f"{name:<16}{100 * statistics.mean(shares):.1f} %   ({each})", flush=True)
