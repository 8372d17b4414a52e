"""The sounds of a made world really sound as its truth says."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from triptych.data.world import FACTORS, World, make, read_truth

WORLDS = {
    "easy": World(scenes=300, seed=5, novel=0.1),
    "hard": World(scenes=60, actors=3, difficulty="hard", seconds=3.0),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Of each world its folder, its truth and its settings."""
    folders = {name: make(world, tmp_path_factory.mktemp("worlds") / name).parent for name, world in WORLDS.items()}
    return {name: (folder, read_truth(folder), WORLDS[name]) for name, folder in folders.items()}


@pytest.fixture(params=list(WORLDS))
def world(request, worlds):
    return worlds[request.param]


@pytest.fixture
def easy(worlds):
    return worlds["easy"][:2]


def sound_of(folder: Path, truth) -> np.ndarray:
    samples, rate = soundfile.read(folder / f"sounds/{truth.id}.wav")
    assert rate == 16_000
    return samples


def heard(folder: Path, truths):
    """Each performer with the samples from its first note to its last."""
    for truth in truths:
        samples = sound_of(folder, truth)
        for each in truth.performers:
            start, end = each.time
            yield each, samples[round(start * 16_000) : round(end * 16_000)]


def test_sound_is_loud_in_the_notes_and_quiet_elsewhere(easy):
    folder, truths = easy
    for truth in truths:
        samples = sound_of(folder, truth)
        silent = np.ones(len(samples), dtype=bool)
        for each in truth.performers:
            for start, end in each.notes:
                part = slice(round(start * 16_000), round(end * 16_000))
                assert np.sqrt(np.mean(samples[part] ** 2)) > 0.05
                silent[part] = False
        assert np.sqrt(np.mean(samples[silent] ** 2)) < 0.006


def test_as_many_onsets_are_heard_as_there_are_notes(easy):
    folder, truths = easy
    for each, samples in heard(folder, truths):
        loud = np.sqrt(np.convolve(samples**2, np.ones(240) / 240))  # 15 ms
        onsets, sounding = 0, False
        for level in loud / loud.max():
            onsets += level > 0.3 and not sounding
            sounding = level > (0.08 if sounding else 0.3)  # a note dies away unevenly: it is over when almost gone
        assert onsets == each.actor.count == len(each.notes), each.actor


def test_notes_keep_to_their_third_of_the_clip_and_their_tempo(world):
    _, truths, settings = world
    seconds = settings.seconds
    lengths, steps = defaultdict(set), defaultdict(set)
    for each in (each for truth in truths for each in truth.performers):
        third = FACTORS["moment"].values.index(each.actor.moment) * seconds / 3
        assert third - 1e-3 <= each.time[0] < each.time[1] <= third + seconds / 3 + 1e-3
        lengths[each.actor.rhythm] |= {round(end - start, 3) for start, end in each.notes}
        steps[each.actor.rhythm] |= {round(b[0] - a[0], 3) for a, b in pairwise(each.notes)}
    for found in (lengths, steps):
        assert max(found["quick"]) < min(found["steady"])
        assert max(found["steady"]) < min(found["slow"])


def spectrum(samples: np.ndarray) -> np.ndarray:
    """Share of the energy in bands a quarter of an octave wide, from 100 Hz up."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    pitches = np.fft.rfftfreq(len(samples), 1 / 16_000)
    edges = 100 * 2 ** (np.arange(26) / 4)
    bands = np.array([power[(pitches >= a) & (pitches < b)].sum() for a, b in pairwise(edges)])
    return bands / bands.sum()


def test_height_is_heard_as_register(easy):
    folder, truths = easy
    middles = defaultdict(list)
    for each, samples in heard(folder, truths):
        middles[each.actor.thing, each.actor.height].append(float(spectrum(samples) @ np.arange(25)) / 4)  # octaves
    for thing in FACTORS["thing"].values:
        low, middle, high = (np.median(middles[thing, height]) for height in FACTORS["height"].values)
        assert low + 0.3 < middle, thing
        assert middle + 0.3 < high, thing


def test_things_are_told_apart_by_timbre(easy):
    folder, truths = easy
    shown = [(each.actor, np.log(spectrum(samples) + 1e-4)) for each, samples in heard(folder, truths)]
    known, asked = shown[::2], shown[1::2]
    groups = defaultdict(list)
    for actor, features in known:
        groups[actor.thing, actor.height].append(features)
    centres = {key: np.mean(values, axis=0) for key, values in groups.items()}
    guesses = [min(centres, key=lambda key: np.linalg.norm(centres[key] - features)) for _, features in asked]
    right = [guess[0] == actor.thing for guess, (actor, _) in zip(guesses, asked, strict=True)]
    assert np.mean(right) >= 0.9
