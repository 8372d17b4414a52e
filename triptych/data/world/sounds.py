"""Play a scene: a voice for each thing, a register for each height, and the time of every note."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from triptych.data.world.scenes import FACTORS, Actor, Scene

Samples = NDArray[np.float64]
Span = tuple[float, float]  # start and end in seconds

RATE = 16_000
REGISTERS = {"low": 220.0, "middle": 494.0, "high": 1109.0}  # Hz, more than an octave apart
TEMPI = {"quick": (0.085, 0.05), "steady": (0.125, 0.085), "slow": (0.165, 0.13)}  # step and length of notes, seconds
USUAL_SECONDS = 2.0  # the length of clip those tempi are for; they stretch with longer clips
HIGHEST = 7_500.0  # Hz, partials above are left out: near half the rate they would fold back


def play(
    scene: Scene, seconds: float, jitter: float, noise: float, rng: np.random.Generator
) -> tuple[NDArray[np.int16], list[list[Span]]]:
    """The sound of a scene (16 kHz, mono), and for each actor the start and end of its notes."""
    wave = _backdrop(scene.backdrop, round(seconds * RATE), noise, rng)
    spans = []
    for actor in scene.actors:
        pitch = REGISTERS[actor.height] * 2 ** (jitter * rng.uniform(-1.5, 1.5) / 12)  # up to 1.5 semitones off
        loudness = 0.12 * (1 - 0.5 * jitter * rng.random())
        notes = _time_notes(actor, seconds, jitter, rng)
        for start, end in notes:
            first, last = round(start * RATE), round(end * RATE)
            wave[first:last] += loudness * _note(actor.thing, pitch, last - first, rng)
        spans.append(notes)
    return np.rint(np.clip(wave, -1, 1) * 32_767).astype(np.int16), spans


def _time_notes(actor: Actor, seconds: float, jitter: float, rng: np.random.Generator) -> list[Span]:
    """Notes at the actor's tempo, somewhere inside its third of the clip."""
    step, length = (value * seconds / USUAL_SECONDS for value in TEMPI[actor.rhythm])
    slot = seconds / len(FACTORS["moment"].values)
    slack = slot - (actor.count - 1) * step - length
    start = FACTORS["moment"].values.index(actor.moment) * slot + slack * (0.5 + jitter * (rng.random() - 0.5))
    return [(round(start + place * step, 4), round(start + place * step + length, 4)) for place in range(actor.count)]


def _note(thing: str, pitch: float, samples: int, rng: np.random.Generator) -> Samples:
    """One note of loudness 1 (root mean square), silent at both ends."""
    time = np.arange(samples) / RATE
    wave = VOICES[thing](time, time * RATE / samples, pitch, rng)
    edge = np.minimum(1, np.minimum(time, time[::-1]) / 0.004)  # 4 ms, against clicks
    wave = wave * edge
    return wave / np.sqrt(np.mean(wave**2))


def _backdrop(kind: str, samples: int, noise: float, rng: np.random.Generator) -> Samples:
    """What is heard before anything happens: almost nothing, a hiss, or the hum of a mains cable."""
    hiss = rng.standard_normal(samples, dtype=np.float32) * np.float32(noise if kind == "hiss" else 0.1 * noise)
    if kind != "hum":
        return hiss.astype(np.float64)
    period = np.arange(RATE // 50) / RATE
    return hiss + np.resize(noise * _sum_partials(period, 50.0, (1, 2, 3), (0.6, 1.0, 0.5)), samples)


def _sum_partials(time: Samples, pitch: float, ratios: Sequence[float], weights: Sequence[float]) -> Samples:
    wave = np.zeros_like(time)
    for ratio, weight in zip(ratios, weights, strict=True):
        if pitch * ratio < HIGHEST:
            wave += weight * np.sin(2 * np.pi * pitch * ratio * time)
    return wave


def _glide(pitches: Samples) -> Samples:
    """A sine whose pitch changes from sample to sample."""
    return np.sin(2 * np.pi * np.cumsum(pitches) / RATE)


# Each voice is given the time in seconds, the part of the note gone by (0 to 1), the pitch in Hz and a source of noise.


def _bell(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _sum_partials(time, pitch, (1, 2.0, 2.76, 5.4), (1, 0.5, 0.8, 0.4)) * np.exp(-3 * gone)


def _drum(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    skin = _glide(pitch * (0.6 + 0.8 * np.exp(-9 * gone)))
    return skin * np.exp(-3 * gone) + 0.5 * rng.standard_normal(len(time)) * np.exp(-7 * gone)


def _bird(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _glide(pitch * (2.2 + 1.2 * np.sin(6 * np.pi * gone))) * np.sin(np.pi * gone) ** 0.5


def _frog(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    pulses = np.clip(0.2 + np.sin(2 * np.pi * 70 * time), 0, None)
    return pulses * _sum_partials(time, pitch, (1, 2, 3, 4), (1, 0.9, 0.3, 0.1)) * (1 - 0.5 * gone)


def _bee(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    ratios = range(1, 17)
    wave = _sum_partials(time, pitch, ratios, [k**-0.4 for k in ratios])
    return wave * (1 + 0.4 * np.sin(2 * np.pi * 25 * time))


def _clock(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    wood = _sum_partials(time, pitch, (1, 3, 5, 7, 9), (0.6, 1, 0.3, 0.8, 0.4))
    return (wood + rng.standard_normal(len(time)) * (gone < 0.1)) * np.exp(-8 * gone)


def _whistle(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    breath = 0.12 * rng.standard_normal(len(gone))
    return _glide(pitch * (1 + 0.03 * np.sin(2 * np.pi * 35 * time))) + breath


def _horn(time: Samples, gone: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    wave = _sum_partials(time, pitch, (1, 2, 3, 4, 5, 6), (0.7, 0.9, 1, 0.7, 0.4, 0.2))
    return wave * np.minimum(1, 4 * gone)


VOICES: dict[str, Callable[[Samples, Samples, float, np.random.Generator], Samples]] = {
    "bell": _bell,
    "drum": _drum,
    "bird": _bird,
    "frog": _frog,
    "bee": _bee,
    "clock": _clock,
    "whistle": _whistle,
    "horn": _horn,
}
