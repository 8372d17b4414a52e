"""Sound files to log-mel frames beside librosa and transformers: real clips, decoded, resampled and transformed."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from bench.measure import compare
from bench.peers import import_peer
from bench.real_data import find_dataset
from triptych.media import audio

RATE, MELS, WINDOW, HOP, SECONDS = 48_000, 64, 1024, 480, 5.0  # as the peer's extractor is set
CLIPS, REPEATS = 40, 7
TARGET = 4.0  # times as many files a second


def list_clips() -> list[Path]:
    """Some clips of ESC-50, spread over its classes."""
    folder = find_dataset("esc50")
    if folder is None:
        sys.exit("no esc50 here: set TRIPTYCH_DATA to the folder that holds it")
    paths = sorted((folder / "audio").glob("*.*"))
    return paths[:: len(paths) // CLIPS][:CLIPS]


def build_peer(paths: list[Path]) -> Callable[[], None]:
    """The usual way: librosa.load, then the feature extractor that transformers brings for such models."""
    librosa, extractor = (
        import_peer("librosa"),
        import_peer("transformers").ClapFeatureExtractor(truncation="rand_trunc"),
    )
    length = round(SECONDS * RATE)  # told to it, as it would repeat a clip to its own ten seconds

    def work() -> None:
        for path in paths:
            samples, _ = librosa.load(path, sr=RATE)
            extractor(samples[:length], sampling_rate=RATE, max_length=length, return_tensors="np")

    return work


def build_ours(paths: list[Path], workers: int) -> Callable[[], None]:
    """What our encoders do, on worker threads of one core each, as the loader runs them."""

    def transform_file(path: Path) -> None:
        audio.log_mel_spectrogram(audio.read(path, RATE, 0.0, SECONDS), RATE, MELS, WINDOW, HOP)

    def work() -> None:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(transform_file, paths))

    return work


def main() -> None:
    """Files a second of both, alternately: the peer as it is used, ours on one worker and on two, the default."""
    paths = list_clips()
    for workers in (1, 2):
        times = compare(build_ours(paths, workers), build_peer(paths), REPEATS)
        low, high = sorted(1 / ratio for ratio in times.spread)
        for name, durations in (
            (f"triptych, workers: {workers}", times.ours),
            ("librosa + transformers", times.theirs),
        ):
            rates = sorted(len(paths) / seconds for seconds in durations)
            print(f"{name:<24}{statistics.median(rates):6.0f} files/s   ({rates[0]:.0f} to {rates[-1]:.0f})")
        print(f"{'ratio of medians':<24}{1 / times.ratio:6.1f} ×         ({low:.1f} to {high:.1f}; reach {TARGET:g})")
