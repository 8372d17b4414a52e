"""A made world with known answers: pictures, sounds and captions of scenes built from independent factors.

World says what to make, make writes it, read_truth reads its answers; FACTORS has every value and where it shows,
phrases how captions say it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from triptych.csv_files import write_rows
from triptych.data import noise
from triptych.data.world import films
from triptych.data.world.pictures import draw
from triptych.data.world.scenes import THINGS, HeldOut, assign_splits, hold_out, sample_scene
from triptych.data.world.sounds import RATE, play
from triptych.data.world.truth import FILE as TRUTH
from triptych.data.world.truth import truth_line
from triptych.data.world.words import Telling, describe
from triptych.errors import UsageError, unknown
from triptych.files import PART, lock

if TYPE_CHECKING:
    from triptych.contracts import Modality  # only for annotations: contracts load torch, the world does not need it

VERSION = 1  # raise it when the same settings give other files
MANIFEST, SETTINGS, SWAPS = "manifest.csv", "world.json", "swaps.csv"
FILES = {"image": "images/{}.png", "audio": "sounds/{}.wav"}
Difficulty = Literal["easy", "medium", "hard"]


@dataclass(frozen=True)
class Knobs:
    """What makes a world hard, apart from the number of actors."""

    picture_noise: float  # spread of the grain, 1 = black to white
    sound_noise: float  # loudness of the backdrop; a note has about 0.1
    jitter: float  # how far size, place, pitch, loudness and timing stray: 0 not at all, 1 as far as the factors allow
    vagueness: float  # how often a caption leaves a factor out


PRESETS: dict[Difficulty, Knobs] = {
    "easy": Knobs(picture_noise=0.01, sound_noise=0.003, jitter=0.4, vagueness=0.15),
    "medium": Knobs(picture_noise=0.04, sound_noise=0.012, jitter=0.7, vagueness=0.3),
    "hard": Knobs(picture_noise=0.1, sound_noise=0.04, jitter=1.0, vagueness=0.5),
}


@dataclass(frozen=True)
class World:
    """What to make; the same settings always give the same bytes."""

    scenes: int = 3000
    seed: int = 0
    actors: int = 2  # at most so many in a scene
    things: int = len(THINGS)  # the first so many kinds
    captions: int = 5
    size: int = 64  # pixels
    seconds: float = 2.0
    difficulty: Difficulty = "easy"
    picture_noise: float | None = None  # these four: None takes the value of the difficulty
    sound_noise: float | None = None
    jitter: float | None = None
    vagueness: float | None = None
    held_out: float = 0.1  # share of the (thing, colour) and (thing, height) combinations only the novel split has
    valid: float = 0.05  # shares of the scenes; train has the rest
    test: float = 0.15
    novel: float = 0.05
    noise: float = 0.0  # share of the train rows that are given the content of another row
    noise_kind: noise.Kind = "random"
    noise_modality: Modality = "text"
    films: bool = False  # films in place of pictures and sounds

    def __post_init__(self) -> None:
        for name, (kind, low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in Knobs.__annotations__:
                _check(name, value, kind, low, high)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError(unknown(name.replace("_", " "), str(getattr(self, name)), known))
        if self.films and self.noise and self.noise_modality != "text":
            raise UsageError(f"noise_modality is {self.noise_modality}; of films only the text can be swapped")
        if self.things < self.actors:
            raise UsageError(
                f"things is {self.things} and actors is {self.actors}; allowed: at least one thing an actor"
            )
        if min(self.split_counts.values()) < 0 or self.split_counts["train"] == 0:
            raise UsageError(
                f"valid {self.valid}, test {self.test} and novel {self.novel} leave no scene for train; "
                "allowed: shares with a sum below 1"
            )
        combinations = self.held_out_combinations
        if self.split_counts["novel"] and not (combinations.colours or combinations.heights):
            raise UsageError(
                f"novel is {self.novel}, but held_out {self.held_out} holds no combination out; "
                "raise held_out, or set novel to 0"
            )

    @property
    def knobs(self) -> Knobs:
        """The difficulty, with what was set by hand in place of its own values."""
        own = {name: getattr(self, name) for name in Knobs.__annotations__ if getattr(self, name) is not None}
        return replace(PRESETS[self.difficulty], **own)

    @property
    def split_counts(self) -> dict[str, int]:
        """How many scenes each split has."""
        counts = {name: round(getattr(self, name) * self.scenes) for name in ("valid", "test", "novel")}
        return {"train": self.scenes - sum(counts.values()), **counts}

    @property
    def held_out_combinations(self) -> HeldOut:
        """The combinations that only the novel split has."""
        return hold_out(THINGS[: self.things], self.held_out, np.random.default_rng([self.seed, 0, 1]))


RANGES: dict[str, tuple[type, float, float]] = {
    "scenes": (int, 10, 999_999),
    "seed": (int, 0, 2**63 - 1),
    "actors": (int, 1, 3),
    "things": (int, 2, len(THINGS)),
    "captions": (int, 1, 20),
    "size": (int, 32, 1024),
    "seconds": (float, 1, 60),
    "picture_noise": (float, 0, 1),
    "sound_noise": (float, 0, 1),
    "jitter": (float, 0, 1),
    "vagueness": (float, 0, 1),
    "held_out": (float, 0, 0.5),
    "valid": (float, 0, 1),
    "test": (float, 0, 1),
    "novel": (float, 0, 1),
    "noise": (float, 0, 1),
}
CHOICES: dict[str, Sequence[str]] = {
    "difficulty": get_args(Difficulty),
    "noise_kind": noise.KINDS,
    "noise_modality": tuple(noise.COLUMNS),
}


def _check(name: str, value: object, kind: type, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not is_number or not low <= float(str(value)) <= high:
        raise UsageError(
            f"{name} is {value!r}; allowed: {'a whole' if kind is int else 'a'} number from {low} to {high}"
        )


def make(world: World, folder: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write a world to a folder and return its manifest; one with the same settings that is already there is kept.

    The folder appears only when everything in it is written; what killed processes have left beside it is removed.
    progress is told the scenes done, and their number.
    """
    folder = folder.resolve()
    if _is_made(world, folder) and not _leftovers(folder):
        return folder / MANIFEST
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_name(f".{folder.name}.lock")) as is_ours:
        if is_ours:  # whoever wrote the leftovers is dead: each process holds this lock while it writes
            for part in _leftovers(folder):
                shutil.rmtree(part, ignore_errors=True)
        if _is_made(world, folder):
            return folder / MANIFEST
        if not is_ours:
            raise UsageError(f"{folder}: another process is making a world here; wait until it is done")
        part = folder.with_name(f".{folder.name}.{os.getpid()}{PART}")
        try:
            for kind in ("films",) if world.films else ("images", "sounds"):
                (part / kind).mkdir(parents=True)
            _fill(world, part, progress)
            if folder.is_dir():
                folder.rmdir()  # it is empty; not every system lets a rename replace it
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder / MANIFEST


def _is_made(world: World, folder: Path) -> bool:
    """Whether this very world is there; anything else that is in the way is refused."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose another folder for the world")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not _is_same(world, folder):
        raise UsageError(
            f"{folder} is not empty and is no world with these settings; remove it or choose another folder"
        )
    return True


def _leftovers(folder: Path) -> list[Path]:
    """Folders beside the target in which a process was writing, or still is."""
    if not folder.parent.is_dir():
        return []
    part = re.compile(rf"\.{re.escape(folder.name)}\.\d+{re.escape(PART)}")
    return [path for path in folder.parent.iterdir() if part.fullmatch(path.name) and path.is_dir()]


def _fill(world: World, folder: Path, progress: Callable[[int, int], None] | None) -> None:
    splits = assign_splits(world.split_counts, np.random.default_rng([world.seed, 0, 2]))
    held_out = world.held_out_combinations
    rows: list[dict[str, str]] = []
    with (folder / TRUTH).open("w", encoding="utf-8", newline="\n") as file:
        for index in range(world.scenes):
            line, row = _make_scene(world, held_out, splits[index], index, folder)
            file.write(line + "\n")
            rows.append(row)
            if progress:
                progress(len(rows), world.scenes)
    rows = _damage(world, rows, folder)
    with (folder / MANIFEST).open("w", encoding="utf-8", newline="") as file:
        write_rows(file, list(rows[0]), rows)
    (folder / SETTINGS).write_text(json.dumps(_describe_settings(world), indent=2) + "\n", encoding="utf-8")


def _make_scene(world: World, held_out: HeldOut, split: str, index: int, folder: Path) -> tuple[str, dict[str, str]]:
    """Write the files of one scene; returns its line of truth and its row of the manifest."""
    rng = np.random.default_rng([world.seed, index])
    knobs, name = world.knobs, f"{index:06d}"
    scene = sample_scene(THINGS[: world.things], world.actors, held_out, split == "novel", rng)
    still = deepcopy(rng)
    picture, boxes = draw(scene, world.size, knobs.jitter, knobs.picture_noise, rng)
    sound, notes = play(scene, world.seconds, knobs.jitter, knobs.sound_noise, rng)
    told = describe(scene, world.captions, knobs.vagueness, rng)
    files = {"video": "films/{}.mp4"} if world.films else FILES
    files = {column: path.format(name) for column, path in files.items()}
    if world.films:
        frames = films.shoot(scene, world.size, knobs.jitter, knobs.picture_noise, notes, world.seconds, still)
        films.save(folder / files["video"], frames, sound)
    else:
        picture.save(folder / files["image"], compress_level=1)
        (folder / files["audio"]).write_bytes(_wav(sound))
    row = {"id": name, **files, **_caption_cells(told), "split": split, "label": scene.actors[0].thing}
    return truth_line(name, split, scene, boxes, notes, told), row


def _wav(samples: np.ndarray) -> bytes:
    """Mono 16-bit samples as a WAV file.

    By hand: soundfile waits for the disk at each file, and an interrupted `wave.open` prints a traceback of its own.
    """
    data = samples.astype("<i2").tobytes()
    header = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVEfmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", len(data)
    )
    return header + data


def _caption_cells(told: Sequence[Telling]) -> dict[str, str]:
    return {f"caption_{number}": each.text for number, each in enumerate(told, start=1)}


def _damage(world: World, rows: list[dict[str, str]], folder: Path) -> list[dict[str, str]]:
    """Exchange content between train rows only: what a model is measured on must be right."""
    if not world.noise:
        return rows
    train = [row for row in rows if row["split"] == "train"]
    ids, labels = [row["id"] for row in train], [row["label"] for row in train]
    swaps = noise.swap(ids, labels, world.noise, world.noise_kind, world.seed, world.noise_modality)
    noise.write_swaps(folder / SWAPS, swaps)
    return noise.apply(rows, swaps)


def _describe_settings(world: World) -> dict[str, object]:
    return {
        "version": VERSION,
        # A world without films is what it was before there were any.
        "settings": {name: value for name, value in asdict(world).items() if name != "films" or value},
        "difficulty": asdict(world.knobs),
        "splits": world.split_counts,
        "held_out": asdict(world.held_out_combinations),
    }


def _is_same(world: World, folder: Path) -> bool:
    try:
        found = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return found == json.loads(json.dumps(_describe_settings(world)))
