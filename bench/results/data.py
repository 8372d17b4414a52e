"""The datasets of the results, each made by one command from local copies in $TRIPTYCH_DATA."""

from __future__ import annotations

from bench.results.schema import RESULTS_FOLDER, Dataset

FOLDS = (1, 2, 3, 4, 5)
ESC50 = {"fold": "fold", "unseen": "classes"}  # folds of clips, and of classes


def _esc50(name: str, *options: str) -> Dataset:
    return Dataset(name, ("triptych", "data", "esc50", "$TRIPTYCH_DATA/esc50", "-o", "{data}", *options))


DATASETS = [
    Dataset("gcompris", ("triptych", "data", "gcompris", "$TRIPTYCH_DATA/gcompris", "-o", "{data}")),
    Dataset(
        "flickr8k-speech",
        ("triptych", "data", "add-speech", "{flickr8k}", "--allow-outside", "--captions-per-row", "1", "-o", "{data}"),
        needs=("flickr8k",),
    ),
    Dataset(
        "synthetic",
        ("triptych", "data", "synthetic", f"{RESULTS_FOLDER}/data/synthetic", "--scenes", "1000", "--captions", "2"),
        file="synthetic/manifest.csv",
    ),
    Dataset(
        "videos",
        ("triptych", "data", "synthetic", f"{RESULTS_FOLDER}/data/videos", "--video", "--scenes", "600"),
        file="videos/manifest.csv",
    ),
    Dataset("flickr8k", ("triptych", "data", "flickr8k", "$TRIPTYCH_DATA/flickr8k", "-o", "{data}")),
    *(
        Dataset(
            f"flickr8k-{noise_kind}{percent}{suffix}",
            (
                *("triptych", "data", "inject-noise", "{flickr8k}", "--allow-outside", "-o", "{data}"),
                *("--noise-rate", str(percent / 100), "--noise-kind", noise_kind, *drop),
            ),
            needs=("flickr8k",),
        )
        for suffix, drop in (("", ()), ("-dropped", ("--drop",)))
        for noise_kind, percent in (("random", 20), ("random", 40), ("random", 60), ("similar", 40))
    ),
    Dataset(
        "flickr8k-single",
        (*("triptych", "data", "flickr8k", "$TRIPTYCH_DATA/flickr8k", "-o", "{data}"), "--captions", "single"),
    ),
    *(
        Dataset(
            f"flickr8k-single-random{percent}",
            (
                *("triptych", "data", "inject-noise", "{flickr8k-single}", "--allow-outside", "-o", "{data}"),
                *("--noise-rate", str(percent / 100)),
            ),
            needs=("flickr8k-single",),
        )
        for percent in (20, 40, 60)
    ),
    *(_esc50(f"esc50-{name}{n}", f"--{option}", str(n)) for name, option in ESC50.items() for n in FOLDS),
    *(
        _esc50(f"esc50-{name}{n}-all", f"--{option}", str(n), "--splits", "two")
        for name, option in ESC50.items()
        for n in FOLDS
    ),
    *(
        Dataset(
            f"esc50-fold{n}-random{percent}",
            (
                *("triptych", "data", "inject-noise", f"{{esc50-fold{n}-all}}", "--allow-outside", "-o", "{data}"),
                *("--noise-rate", str(percent / 100), "--split", "train"),
            ),
            needs=(f"esc50-fold{n}-all",),
        )
        for percent in (20, 40, 60)
        for n in FOLDS
    ),
]
DATA = {dataset.name: dataset for dataset in DATASETS}
