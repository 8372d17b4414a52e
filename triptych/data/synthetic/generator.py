"""Generate synthetic data: images, audio and captions of scenes sampled from independent factors."""

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
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from triptych.csv_files import write_rows
from triptych.data import label_noise
from triptych.data.synthetic import videos
from triptych.data.synthetic.annotations import ANNOTATIONS_FILE, annotation_to_json
from triptych.data.synthetic.audio import SAMPLE_RATE, render_audio
from triptych.data.synthetic.captions import describe_scene
from triptych.data.synthetic.images import draw_image
from triptych.data.synthetic.scenes import CATEGORIES, HeldOutCombinations, assign_splits, choose_held_out, sample_scene
from triptych.errors import UsageError, describe_unknown
from triptych.files import TEMP_SUFFIX, lock

if TYPE_CHECKING:
    from triptych.interfaces import Modality  # an import at run time would load torch

FORMAT_VERSION = 2  # increment when the same configuration gives other files
MANIFEST_FILE, CONFIG_FILE, SWAPS_FILE = "manifest.csv", "synthetic.json", "swaps.csv"
FILE_PATTERNS = {"image": "images/{}.png", "audio": "audio/{}.wav"}
VIDEO_FILE_PATTERNS = {"video": "videos/{}.mp4"}
Difficulty = Literal["easy", "medium", "hard"]


@dataclass(frozen=True)
class DifficultySettings:
    """The amount of noise and variation in a scene."""

    image_noise: float  # standard deviation of pixel noise; 1 is the distance from black to white
    audio_noise: float  # amplitude of the background; notes have about 0.1
    jitter: float  # variation of size, position, pitch, loudness and timing: from 0 (none) to 1 (the maximum)
    omission_rate: float  # probability that a caption omits a factor


PRESETS: dict[Difficulty, DifficultySettings] = {
    "easy": DifficultySettings(image_noise=0.01, audio_noise=0.003, jitter=0.4, omission_rate=0.15),
    "medium": DifficultySettings(image_noise=0.04, audio_noise=0.012, jitter=0.7, omission_rate=0.3),
    "hard": DifficultySettings(image_noise=0.1, audio_noise=0.04, jitter=1.0, omission_rate=0.5),
}


@dataclass(frozen=True)
class SyntheticConfig:
    """The configuration of a synthetic dataset. The same configuration always gives the same bytes."""

    scenes: int = 3000
    seed: int = 0
    max_objects: int = 2  # per scene
    num_categories: int = len(CATEGORIES)  # only the first categories of CATEGORIES are used
    captions: int = 5  # per scene
    image_size: int = 64  # pixels
    seconds: float = 2.0
    difficulty: Difficulty = "easy"
    image_noise: float | None = None  # None in this and the next three fields selects the preset of `difficulty`
    audio_noise: float | None = None
    jitter: float | None = None
    omission_rate: float | None = None
    held_out_fraction: float = 0.1  # fraction of the combinations that only the novel split has
    valid_fraction: float = 0.05  # fraction of the scenes; the train split has the rest
    test_fraction: float = 0.15
    novel_fraction: float = 0.05
    noise_rate: float = 0.0  # fraction of training rows that get the `noise_modality` of another row
    noise_kind: label_noise.SwapKind = "random"
    noise_modality: Modality = "text"
    video: bool = False  # write videos instead of images and audio

    def __post_init__(self) -> None:
        for name, (number_type, low, high) in RANGES.items():
            value: Any = getattr(self, name)
            if name in DifficultySettings.__annotations__ and getattr(self, name) is None:
                continue
            is_number = isinstance(value, (int, number_type)) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                type_name = "a whole number" if number_type is int else "a number"
                raise UsageError(f"{name} is {value!r}; allowed: {type_name} from {low} to {high}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(describe_unknown(name.replace("_", " "), str(getattr(self, name)), allowed))
        if self.video and self.noise_rate and self.noise_modality != "text":
            raise UsageError(f"noise_modality is {self.noise_modality}; videos support noise_modality text only")
        if self.num_categories < self.max_objects:
            raise UsageError(
                f"num_categories is {self.num_categories} and max_objects is {self.max_objects}; "
                "num_categories must be at least max_objects"
            )
        if min(self.split_counts.values()) < 0 or self.split_counts["train"] == 0:
            raise UsageError(
                f"valid_fraction {self.valid_fraction}, test_fraction {self.test_fraction} and novel_fraction "
                f"{self.novel_fraction} leave no scene for train; their sum must be below 1"
            )
        combinations = self.held_out_combinations
        if self.split_counts["novel"] and not (combinations.colours or combinations.heights):
            raise UsageError(
                f"novel_fraction is {self.novel_fraction}, but held_out_fraction {self.held_out_fraction} holds no "
                "combination out; raise held_out_fraction, or set novel_fraction to 0"
            )

    @property
    def difficulty_settings(self) -> DifficultySettings:
        """The settings of the preset, with the values that this configuration overrides."""
        values = {name: getattr(self, name) for name in DifficultySettings.__annotations__}
        return replace(PRESETS[self.difficulty], **{name: x for name, x in values.items() if x is not None})

    @property
    def split_counts(self) -> dict[str, int]:
        """The number of scenes in each split."""
        counts = {name: round(getattr(self, f"{name}_fraction") * self.scenes) for name in ("valid", "test", "novel")}
        return {"train": self.scenes - sum(counts.values()), **counts}

    @property
    def held_out_combinations(self) -> HeldOutCombinations:
        """The combinations that occur in the novel split only."""
        rng = np.random.default_rng([self.seed, 0, 1])
        return choose_held_out(CATEGORIES[: self.num_categories], self.held_out_fraction, rng)


RANGES: dict[str, tuple[type, float, float]] = {
    "scenes": (int, 10, 999_999),
    "seed": (int, 0, 2**63 - 1),
    "max_objects": (int, 1, 3),
    "num_categories": (int, 2, len(CATEGORIES)),
    "captions": (int, 1, 20),
    "image_size": (int, 32, 1024),
    "seconds": (float, 1, 60),
    **dict.fromkeys(DifficultySettings.__annotations__, (float, 0, 1)),
    "held_out_fraction": (float, 0, 0.5),
    **dict.fromkeys(("valid_fraction", "test_fraction", "novel_fraction", "noise_rate"), (float, 0, 1)),
}
CHOICES: dict[str, Sequence[str]] = {
    "difficulty": get_args(Difficulty),
    "noise_kind": label_noise.SWAP_KINDS,
    "noise_modality": tuple(label_noise.MODALITY_COLUMNS),
}


def generate(config: SyntheticConfig, folder: Path, on_scene: Callable[[int], None] | None = None) -> Path:
    """Write the data to a folder. Return the path of the manifest in the folder.

    A folder with data of the same configuration is reused. The data is written to a temporary folder, which is renamed
    at the end. Temporary folders of killed processes are removed. `on_scene(1)` is called after each scene.
    """
    folder = folder.resolve()
    if _is_generated(config, folder) and not _find_stale_folders(folder):
        return folder / MANIFEST_FILE
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_name(f".{folder.name}.lock")) as has_lock:
        if has_lock:  # no other process is writing: all temporary folders belong to dead processes
            for temporary in _find_stale_folders(folder):
                shutil.rmtree(temporary, ignore_errors=True)
        if _is_generated(config, folder):
            return folder / MANIFEST_FILE
        if not has_lock:
            raise UsageError(f"{folder}: another process is generating data here; wait until it is done")
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}{TEMP_SUFFIX}")
        try:
            for pattern in (VIDEO_FILE_PATTERNS if config.video else FILE_PATTERNS).values():
                (temporary / pattern).parent.mkdir(parents=True)
            _write_scenes(config, temporary, on_scene)
            if folder.is_dir():
                folder.rmdir()  # empty; rename() cannot replace a folder on every system
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder / MANIFEST_FILE


def _is_generated(config: SyntheticConfig, folder: Path) -> bool:
    """Return whether the folder has data of this configuration. Raise if the folder has other files."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose another folder for the synthetic data")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    try:
        existing = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        existing = None
    if existing != json.loads(json.dumps(_describe_config(config))):
        raise UsageError(
            f"{folder} is not empty and has no synthetic data of this configuration and this version of triptych; "
            "remove it or choose another folder"
        )
    return True


def _find_stale_folders(folder: Path) -> list[Path]:
    """Return the temporary folders beside the target, of dead and of running processes."""
    if not folder.parent.is_dir():
        return []
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.\d+{re.escape(TEMP_SUFFIX)}")
    return [path for path in folder.parent.iterdir() if pattern.fullmatch(path.name) and path.is_dir()]


def _write_scenes(config: SyntheticConfig, folder: Path, on_scene: Callable[[int], None] | None) -> None:
    splits = assign_splits(config.split_counts, np.random.default_rng([config.seed, 0, 2]))
    held_out = config.held_out_combinations
    rows: list[dict[str, str]] = []
    with (folder / ANNOTATIONS_FILE).open("w", encoding="utf-8", newline="\n") as file:
        for index in range(config.scenes):
            line, row = _write_scene(config, held_out, splits[index], index, folder)
            file.write(line + "\n")
            rows.append(row)
            if on_scene:
                on_scene(1)
    rows = _inject_noise(config, rows, folder)
    with (folder / MANIFEST_FILE).open("w", encoding="utf-8", newline="") as file:
        write_rows(file, list(rows[0]), rows)
    (folder / CONFIG_FILE).write_text(json.dumps(_describe_config(config), indent=2) + "\n", encoding="utf-8")


def _write_scene(
    config: SyntheticConfig, held_out: HeldOutCombinations, split: str, index: int, folder: Path
) -> tuple[str, dict[str, str]]:
    """Write the files of one scene. Return its annotations as a line of JSON, and its row of the manifest."""
    rng = np.random.default_rng([config.seed, index])
    difficulty, name = config.difficulty_settings, f"{index:06d}"
    scene = sample_scene(CATEGORIES[: config.num_categories], config.max_objects, held_out, split == "novel", rng)
    image_rng = deepcopy(rng)
    image, boxes = draw_image(scene, config.image_size, difficulty.jitter, difficulty.image_noise, rng)
    samples, notes = render_audio(scene, config.seconds, difficulty.jitter, difficulty.audio_noise, rng)
    captions = describe_scene(scene, config.captions, difficulty.omission_rate, rng)
    patterns = VIDEO_FILE_PATTERNS if config.video else FILE_PATTERNS
    files = {column: pattern.format(name) for column, pattern in patterns.items()}
    if config.video:
        frames = videos.render_frames(
            scene, config.image_size, difficulty.jitter, difficulty.image_noise, notes, config.seconds, image_rng
        )
        videos.save_video(folder / files["video"], frames, samples)
    else:
        image.save(folder / files["image"], compress_level=1)
        (folder / files["audio"]).write_bytes(_encode_wav(samples))
    texts = {f"caption_{number}": caption.text for number, caption in enumerate(captions, start=1)}
    row = {"id": name, **files, **texts, "split": split, "label": scene.objects[0].category}
    return annotation_to_json(name, split, scene, boxes, notes, captions), row


def _encode_wav(samples: np.ndarray) -> bytes:
    """Encode mono 16-bit samples as a WAV file.

    No library is used: soundfile syncs each file to disk, and `wave` prints its own traceback when interrupted.
    """
    data = samples.astype("<i2").tobytes()
    format_fields = (16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)  # PCM, mono, 16 bit
    header = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVEfmt ", *format_fields, b"data", len(data))
    return header + data


def _inject_noise(config: SyntheticConfig, rows: list[dict[str, str]], folder: Path) -> list[dict[str, str]]:
    """Swap captions, images or audio between training rows only; the other splits are not changed."""
    if not config.noise_rate:
        return rows
    train = [row for row in rows if row["split"] == "train"]
    ids, labels = [row["id"] for row in train], [row["label"] for row in train]
    noise = config.noise_rate, config.noise_kind, config.seed, config.noise_modality
    swaps = label_noise.choose_swaps(ids, labels, *noise)
    label_noise.write_swaps(folder / SWAPS_FILE, swaps)
    return label_noise.apply_swaps({row["id"]: row for row in rows}, swaps, label_noise.take_columns)


def _describe_config(config: SyntheticConfig) -> dict[str, object]:
    return {
        "version": FORMAT_VERSION,
        "config": asdict(config),
        "difficulty": asdict(config.difficulty_settings),
        "splits": config.split_counts,
        "held_out": asdict(config.held_out_combinations),
    }
