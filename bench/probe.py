"""Linear probes of the audio encoders on the five official folds of ESC-50: 2,000 clips of 50 classes."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.real_data import find_dataset, read_esc50_clips
from triptych.data.cache import Cache
from triptych.encoders.efficientat import EfficientAT
from triptych.encoders.soundnet import SoundNet
from triptych.encoders.yamnet import YAMNet
from triptych.evaluation.probe import compute_frozen_features, probe
from triptych.interfaces import Encoder, Source
from triptych.progress import track_progress

FOLDS = range(1, 6)
REGULARISATION = 0.01  # not tuned: selecting a value per fold would take fifteen times as long


def fold_accuracies(
    encoder: Encoder, clips: list[Path], folds: tuple[int, ...], classes: tuple[str, ...]
) -> list[float]:
    """Return the accuracy on each fold of a linear classifier that is trained on the other four folds."""
    sources = [Source("audio", clip) for clip in clips]
    with track_progress(type(encoder).__name__, len(sources)) as progress:
        features = compute_frozen_features(encoder, sources, Cache.default(), progress)
    for reason in features.failures.values():
        sys.exit(reason)
    accuracies_by_fold = []
    for fold in FOLDS:
        train_rows, test_rows = (
            [i for i, clip_fold in enumerate(folds) if (clip_fold != fold) == side] for side in (True, False)
        )
        train_classes, test_classes = ([classes[i] for i in side] for side in (train_rows, test_rows))
        accuracies_by_fold.append(
            probe(
                "audio",
                features.matrix[train_rows],
                train_classes,
                features.matrix[test_rows],
                test_classes,
                REGULARISATION,
            ).accuracy
        )
    return accuracies_by_fold


def main() -> None:
    """Print the accuracy on each fold for each audio encoder."""
    folder = find_dataset("esc50")
    if folder is None:
        print("esc50 not available: set TRIPTYCH_DATA to the folder that contains it")
        return
    clips, folds, _, classes = zip(*read_esc50_clips(folder), strict=True)
    encoders = {
        "efficientat_mn04": EfficientAT,
        "yamnet": YAMNet,
        "soundnet pool5": lambda: SoundNet(layer="pool5"),
        "soundnet conv7": lambda: SoundNet(layer="conv7"),
    }
    for name, make in encoders.items():
        accuracies = fold_accuracies(make(), list(clips), folds, classes)
        folds_text = "  ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies)
        print(f"{name:<18}{100 * statistics.mean(accuracies):.1f} %   ({folds_text})", flush=True)
