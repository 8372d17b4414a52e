"""Audio files to log-mel frames against librosa and transformers: decoding, resampling and transform."""

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

RATE, MELS, WINDOW, HOP, SECONDS = 48_000, 64, 1024, 480, 5.0  # the settings of the peer's extractor
CLIPS, REPEATS = 40, 7
TARGET = 4.0  # minimum ratio of the files per second of triptych and of the peer


def list_clips() -> list[Path]:
    """List some clips of ESC-50, spread over its classes."""
    folder = find_dataset("esc50")
    if folder is None:
        sys.exit("esc50 not available: set TRIPTYCH_DATA to the folder that contains it")
    paths = sorted((folder / "audio").glob("*.*"))
    return paths[:: len(paths) // CLIPS][:CLIPS]


def build_peer(paths: list[Path]) -> Callable[[], None]:
    """Build the usual pipeline: librosa.load, then the feature extractor of transformers."""
    librosa, extractor = (
        import_peer("librosa"),
        import_peer("transformers").ClapFeatureExtractor(truncation="rand_trunc"),
    )
    length = round(SECONDS * RATE)  # given, since the extractor would repeat each clip to its default of ten seconds

    def work() -> None:
        for path in paths:
            samples, _ = librosa.load(path, sr=RATE)
            extractor(samples[:length], sampling_rate=RATE, max_length=length, return_tensors="np")

    return work


def build_ours(paths: list[Path], workers: int) -> Callable[[], None]:
    """Build the pipeline of triptych's audio encoders, on worker threads as in the loader."""

    def transform_file(path: Path) -> None:
        audio.log_mel_spectrogram(audio.read(path, RATE, 0.0, SECONDS), RATE, MELS, WINDOW, HOP)

    def work() -> None:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(transform_file, paths))

    return work


def main() -> None:
    """Print files per second of the peer and of triptych with one and two workers (the default)."""
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
        print(f"{'ratio of medians':<24}{1 / times.ratio:6.1f} ×         ({low:.1f} to {high:.1f}; target {TARGET:g})")
