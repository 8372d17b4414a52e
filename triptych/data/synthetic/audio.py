"""Render the audio of a scene: a timbre for each category, a pitch for each height, notes at known times."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from triptych.data.synthetic.scenes import FACTORS, Scene, SceneObject

Samples = NDArray[np.float64]
TimeSpan = tuple[float, float]  # start and end in seconds

SAMPLE_RATE = 16_000
PITCH_BY_HEIGHT = {"low": 220.0, "middle": 494.0, "high": 1109.0}  # in Hz, more than an octave apart
# For each tempo: seconds from the start of a note to the start of the next note, and duration of a note in seconds.
NOTE_TIMING_BY_TEMPO = {"quick": (0.085, 0.05), "steady": (0.125, 0.085), "slow": (0.165, 0.13)}
REFERENCE_SECONDS = 2.0  # clip duration to which NOTE_TIMING_BY_TEMPO applies; in longer clips, notes are stretched
MAX_FREQUENCY = 7_500.0  # Hz; higher partials are omitted, because they would alias


def render_audio(
    scene: Scene, seconds: float, jitter: float, noise: float, rng: np.random.Generator
) -> tuple[NDArray[np.int16], list[list[TimeSpan]]]:
    """Render a scene (16 kHz, mono). Return the samples, and the start and end of each note of each object."""
    wave = _render_background(scene.background_audio, round(seconds * SAMPLE_RATE), noise, rng)
    spans = []
    for obj in scene.objects:
        detuning = jitter * rng.uniform(-1.5, 1.5)  # in semitones
        pitch = PITCH_BY_HEIGHT[obj.height] * 2 ** (detuning / 12)
        loudness = 0.12 * (1 - 0.5 * jitter * rng.random())
        notes = _schedule_notes(obj, seconds, jitter, rng)
        for start, end in notes:
            first, last = round(start * SAMPLE_RATE), round(end * SAMPLE_RATE)
            wave[first:last] += loudness * _render_note(obj.category, pitch, last - first, rng)
        spans.append(notes)
    return np.rint(np.clip(wave, -1, 1) * 32_767).astype(np.int16), spans


def _schedule_notes(obj: SceneObject, seconds: float, jitter: float, rng: np.random.Generator) -> list[TimeSpan]:
    """Place the notes of an object at the object's tempo, within the third of the clip that `timing` names."""
    step, length = (value * seconds / REFERENCE_SECONDS for value in NOTE_TIMING_BY_TEMPO[obj.tempo])
    slot = seconds / len(FACTORS["timing"].values)
    slack = slot - (obj.count - 1) * step - length
    start = FACTORS["timing"].values.index(obj.timing) * slot + slack * (0.5 + jitter * (rng.random() - 0.5))
    return [(round(start + i * step, 4), round(start + i * step + length, 4)) for i in range(obj.count)]


def _render_note(category: str, pitch: float, samples: int, rng: np.random.Generator) -> Samples:
    """Render one note with a root mean square of 1. The note is faded in and out."""
    time = np.arange(samples) / SAMPLE_RATE
    fade = np.minimum(1, np.minimum(time, time[::-1]) / 0.004)  # fades of 4 ms prevent clicks
    wave = TIMBRES[category](time, time * SAMPLE_RATE / samples, pitch, rng) * fade
    return wave / np.sqrt(np.mean(wave**2))


def _render_background(background: str, samples: int, noise: float, rng: np.random.Generator) -> Samples:
    """Render the background: near silence (hush), white noise (hiss), or 50 Hz hum."""
    hiss = rng.standard_normal(samples, dtype=np.float32) * np.float32(noise if background == "hiss" else 0.1 * noise)
    if background != "hum":
        return hiss.astype(np.float64)
    period = np.arange(SAMPLE_RATE // 50) / SAMPLE_RATE
    return hiss + np.resize(noise * _sum_partials(period, 50.0, (1, 2, 3), (0.6, 1.0, 0.5)), samples)


def _sum_partials(time: Samples, pitch: float, ratios: Sequence[float], weights: Sequence[float]) -> Samples:
    wave = np.zeros_like(time)
    for ratio, weight in zip(ratios, weights, strict=True):
        if pitch * ratio < MAX_FREQUENCY:
            wave += weight * np.sin(2 * np.pi * pitch * ratio * time)
    return wave


def _sweep_sine(pitches: Samples) -> Samples:
    """Return a sine whose frequency changes from sample to sample."""
    return np.sin(2 * np.pi * np.cumsum(pitches) / SAMPLE_RATE)


# The arguments of a timbre are the time in seconds, the position in the note (0 to 1), the pitch in Hz and a generator.


def _render_bell(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _sum_partials(time, pitch, (1, 2.0, 2.76, 5.4), (1, 0.5, 0.8, 0.4)) * np.exp(-3 * position)


def _render_drum(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    skin = _sweep_sine(pitch * (0.6 + 0.8 * np.exp(-9 * position)))
    return skin * np.exp(-3 * position) + 0.5 * rng.standard_normal(len(time)) * np.exp(-7 * position)


def _render_bird(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    return _sweep_sine(pitch * (2.2 + 1.2 * np.sin(6 * np.pi * position))) * np.sin(np.pi * position) ** 0.5


def _render_frog(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    pulses = np.clip(0.2 + np.sin(2 * np.pi * 70 * time), 0, None)
    return pulses * _sum_partials(time, pitch, (1, 2, 3, 4), (1, 0.9, 0.3, 0.1)) * (1 - 0.5 * position)


def _render_bee(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    ratios = range(1, 17)
    wave = _sum_partials(time, pitch, ratios, [k**-0.4 for k in ratios])
    return wave * (1 + 0.4 * np.sin(2 * np.pi * 25 * time))


def _render_clock(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    wood = _sum_partials(time, pitch, (1, 3, 5, 7, 9), (0.6, 1, 0.3, 0.8, 0.4))
    return (wood + rng.standard_normal(len(time)) * (position < 0.1)) * np.exp(-8 * position)


def _render_whistle(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:
    breath = 0.12 * rng.standard_normal(len(position))
    return _sweep_sine(pitch * (1 + 0.03 * np.sin(2 * np.pi * 35 * time))) + breath


def _render_horn(time: Samples, position: Samples, pitch: float, rng: np.random.Generator) -> Samples:  # noqa: ARG001
    wave = _sum_partials(time, pitch, (1, 2, 3, 4, 5, 6), (0.7, 0.9, 1, 0.7, 0.4, 0.2))
    return wave * np.minimum(1, 4 * position)


TIMBRES: dict[str, Callable[[Samples, Samples, float, np.random.Generator], Samples]] = {
    "bell": _render_bell,
    "drum": _render_drum,
    "bird": _render_bird,
    "frog": _render_frog,
    "bee": _render_bee,
    "clock": _render_clock,
    "whistle": _render_whistle,
    "horn": _render_horn,
}
