"""The audio of synthetic data agrees with its annotations."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import soundfile

from triptych.data.synthetic import FACTORS


def read_samples(folder: Path, scene) -> np.ndarray:
    samples, rate = soundfile.read(folder / f"audio/{scene.id}.wav")
    assert rate == 16_000
    return samples


def iter_object_samples(folder: Path, scenes):
    """Yield each object with the samples from its first note to the end of its last."""
    for scene in scenes:
        samples = read_samples(folder, scene)
        for annotation in scene.objects:
            start, end = annotation.time_span
            yield annotation, samples[round(start * 16_000) : round(end * 16_000)]


def test_audio_is_loud_in_the_notes_and_quiet_elsewhere(easy):
    folder, scenes = easy
    for scene in scenes:
        samples = read_samples(folder, scene)
        silent = np.ones(len(samples), dtype=bool)
        for annotation in scene.objects:
            for start, end in annotation.notes:
                part = slice(round(start * 16_000), round(end * 16_000))
                assert np.sqrt(np.mean(samples[part] ** 2)) > 0.05
                silent[part] = False
        assert np.sqrt(np.mean(samples[silent] ** 2)) < 0.006


def test_number_of_onsets_equals_number_of_notes(easy):
    folder, scenes = easy
    for annotation, samples in iter_object_samples(folder, scenes):
        loud = np.sqrt(np.convolve(samples**2, np.ones(240) / 240))  # 15 ms
        onsets, sounding = 0, False
        for level in loud / loud.max():
            onsets += level > 0.3 and not sounding
            sounding = level > (0.08 if sounding else 0.3)  # notes decay unevenly, so the end threshold is lower
        assert onsets == annotation.attributes.count == len(annotation.notes), annotation.attributes


def test_notes_keep_to_their_third_of_the_clip_and_their_tempo(dataset):
    _, scenes, config = dataset
    seconds = config.seconds
    lengths, steps = defaultdict(set), defaultdict(set)
    for annotation in (annotation for scene in scenes for annotation in scene.objects):
        third = FACTORS["timing"].values.index(annotation.attributes.timing) * seconds / 3
        assert third - 1e-3 <= annotation.time_span[0] < annotation.time_span[1] <= third + seconds / 3 + 1e-3
        lengths[annotation.attributes.tempo] |= {round(end - start, 3) for start, end in annotation.notes}
        steps[annotation.attributes.tempo] |= {round(b[0] - a[0], 3) for a, b in pairwise(annotation.notes)}
    for durations in (lengths, steps):
        assert max(durations["quick"]) < min(durations["steady"])
        assert max(durations["steady"]) < min(durations["slow"])


def band_energies(samples: np.ndarray) -> np.ndarray:
    """Return the fraction of energy in bands a quarter of an octave wide, from 100 Hz up."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    pitches = np.fft.rfftfreq(len(samples), 1 / 16_000)
    edges = 100 * 2 ** (np.arange(26) / 4)
    bands = np.array([power[(pitches >= a) & (pitches < b)].sum() for a, b in pairwise(edges)])
    return bands / bands.sum()


def test_height_sets_the_register(easy):
    folder, scenes = easy
    middles = defaultdict(list)
    for annotation, samples in iter_object_samples(folder, scenes):
        middles[annotation.attributes.category, annotation.attributes.height].append(
            float(band_energies(samples) @ np.arange(25)) / 4
        )  # octaves
    for category in FACTORS["category"].values:
        low, middle, high = (np.median(middles[category, height]) for height in FACTORS["height"].values)
        assert low + 0.3 < middle, category
        assert middle + 0.3 < high, category


def test_categories_are_distinguishable_by_timbre(easy):
    folder, scenes = easy
    examples = [
        (each.attributes, np.log(band_energies(samples) + 1e-4))
        for each, samples in iter_object_samples(folder, scenes)
    ]
    train_examples, test_examples = examples[::2], examples[1::2]
    groups = defaultdict(list)
    for attributes, features in train_examples:
        groups[attributes.category, attributes.height].append(features)
    centroids = {key: np.mean(values, axis=0) for key, values in groups.items()}
    guesses = [
        min(centroids, key=lambda key: np.linalg.norm(centroids[key] - features)) for _, features in test_examples
    ]
    is_correct = [
        guess[0] == attributes.category for guess, (attributes, _) in zip(guesses, test_examples, strict=True)
    ]
    assert np.mean(is_correct) >= 0.9
