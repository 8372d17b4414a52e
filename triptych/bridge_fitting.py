"""Fit a bridge between loaded spaces, and write it to a folder that is a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych import checkpoint
from triptych.bridge import Bridge, fit_bridge
from triptych.composite import NON_TEXT, select_encoder
from triptych.composite_files import CompositeSpec
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.errors import UsageError
from triptych.files import find_stale_temp_files
from triptych.interfaces import MODALITIES, Modality, Source
from triptych.media.text import normalise
from triptych.phrases import generate_phrases
from triptych.progress import notify, track_progress
from triptych.space import Space
from triptych.spaces.presence import BRIDGE_FILE, split_names

MIN_TEXTS = 200  # a map is not determined by fewer texts
MIN_MEDIA = 20  # a centre or a calibration needs at least so many items of a modality
MAX_MEDIA = 2000  # number of items of a modality that are embedded for its centre and the calibration
MAX_CALIBRATION_TEXTS = 1000
TRAIN_SPLIT = "train"
MAX_NAMED_FAILURES = 5


def bridge_space(
    space: Space,
    folder: str | Path,
    texts: Sequence[str] | None = None,
    media: Mapping[Modality, Sequence[Source]] | None = None,
    *,
    calibrate: bool = True,
    cache: Cache | None = None,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Fit a bridge between the images and the audio of a direct sum to texts, and write it to a folder.

    Args:
        space: The direct sum of a space of images and texts with a space of audio and texts: triptych.load("A+B").
        folder: The folder to write; `triptych.load` then loads it as a space.
        texts: At least 200 different texts. Default: the phrases of `triptych.phrases`.
        media: Images and audio without captions, for the centre of each modality and for the calibration. Without
            them, the centres are those of the texts, and the bridge is less accurate.
        calibrate: Standardise the scores of pairs of modalities by those of random pairs, if `media` contains images
            and audio. If False, scores of texts with images and of texts with audio are exactly those of the members.
        cache: A cache for the outputs of the encoders. Default: no cache.
        show_progress: Show progress bars on stderr.

    Returns:
        The report: the recall of held-out texts in both directions, the numbers of texts and media.

    Raises:
        UsageError: Too few texts or media, no images and audio to connect, or a folder with other files.

    Example:
        >>> space = triptych.load("hf:openai/clip-vit-base-patch32+hf:laion/clap-htsat-unfused")
        >>> report = bridge_space(space, "clip-clap")
        >>> triptych.load("clip-clap").encode(Path("dog.jpg")).shape
        (2048,)
    """
    folder = Path(folder)
    _check_folder(folder)
    unique_texts = clean_texts(generate_phrases() if texts is None else texts)
    members, sides = split_names(str(space.name_or_path or "")), _find_sides(space)
    if len(members) < 2:
        raise UsageError(f"{space.name_or_path}: not loaded as a direct sum; give triptych.load('A+B')")
    embedded = {"text": _embed(space, [Source("text", t) for t in unique_texts], "text", cache, show_progress)}
    for modality in NON_TEXT:
        if sources := (media or {}).get(modality):
            embedded[modality] = _embed(space, _sample(sources, MAX_MEDIA), modality, cache, show_progress)
            _check_media_count(modality, len(embedded[modality]))
    layout = select_encoder(space, "text").layout  # the halves of the texts, images and audio are (N, A) and (N, B)
    text_halves = [layout.select(embedded["text"], sides[m]) for m in NON_TEXT]
    halves: dict[Modality, Tensor] = {m: layout.select(embedded[m], sides[m]) for m in NON_TEXT if m in embedded}
    text_bridge, report = fit_bridge(text_halves[0], text_halves[1])
    bridge = _move_centres(text_bridge, halves)
    tensors: dict[str, Tensor] = dict(bridge.state_dict())
    is_calibrated = calibrate and len(halves) == len(NON_TEXT)
    if is_calibrated:
        tensors |= measure_calibration(bridge, text_halves, [halves[m] for m in NON_TEXT])
    counts = {f"num_{m}": len(halves.get(m, ())) for m in NON_TEXT}
    summary = asdict(report) | counts | {"phrases": texts is None, "calibrated": is_calibrated}
    fingerprints = tuple(checkpoint.compute_fingerprint(name) for name in members)
    CompositeSpec(members, folder, fingerprints, tensors, summary).save(folder)
    return summary


def _move_centres(bridge: Bridge, halves: Mapping[Modality, Tensor]) -> Bridge:
    """Return the bridge with the centres of the images and of the audio, as far as they are available."""
    image, audio = (halves[m].mean(dim=0) if m in halves else None for m in NON_TEXT)
    centre_a = bridge.centre_a if image is None else image
    centre_b = bridge.centre_b if audio is None else audio
    return Bridge(bridge.map_ab, bridge.map_ba, centre_a, centre_b)


def measure_calibration(bridge: Bridge, texts: Sequence[Tensor], items: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the mean and the standard deviation (3,) of the scores of random pairs, in the order of CALIBRATED_PAIRS.

    `texts` are the two halves of texts that do not describe the items, `items` are the images and the audio.
    """
    rows = np.random.default_rng(0).permutation(len(texts[0]))[:MAX_CALIBRATION_TEXTS]
    scores = [half[rows] @ x.T for half, x in zip(texts, items, strict=True)]
    scores.append(bridge.scores(*items))
    statistics = [(s.double().mean(), s.double().std().clamp_min(1e-6)) for s in scores]
    mean, std = (torch.stack(values).float() for values in zip(*statistics, strict=True))
    return {"score_mean": mean, "score_std": std}


def read_texts(path: str | Path, allow_outside: bool = False) -> list[str]:
    """Return the lines of a text file (.txt), or the captions of a manifest: of its train split, if it has one."""
    path = Path(path).expanduser()
    if path.suffix.lower() != ".txt":
        table = manifest.read(path, allow_outside)
        rows = (table.split(TRAIN_SPLIT) if TRAIN_SPLIT in table.counts.splits else table).rows
        return [caption for row in rows for caption in row.texts]
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read as UTF-8 text ({error}); give a file with one text per line"
        ) from error


def clean_texts(texts: Sequence[str]) -> list[str]:
    """Return the different texts that are not empty, in order. Raise UsageError if there are too few."""
    unique_texts = list(dict.fromkeys(stripped for text in texts if (stripped := normalise(text))))
    if len(unique_texts) < MIN_TEXTS:
        problem = f"{len(unique_texts)} different texts; a bridge needs at least {MIN_TEXTS}, better some thousands"
        raise UsageError(f"{problem}; add texts, or omit --texts to use the phrases of triptych")
    return unique_texts


def _find_sides(space: Space) -> dict[Modality, list[int]]:
    """Return the members with images, and those with audio. Raise UsageError if there is nothing to connect."""
    members = {m: set(select_encoder(space, m).members) if space.supports(m) else set[int]() for m in MODALITIES}
    image, audio = (members[m] for m in NON_TEXT)
    for modality in NON_TEXT:
        if not members[modality]:
            raise UsageError(f"{space.name_or_path}: no member embeds {modality}; a bridge connects images and audio")
    if image & audio:
        problem = "a member embeds images and audio, so they can be compared without a bridge"
        raise UsageError(f"{space.name_or_path}: {problem}; use the direct sum A+B")
    if not image | audio <= members["text"]:
        raise UsageError(f"{space.name_or_path}: a member embeds no texts; a bridge is fitted to texts")
    return {m: sorted(members[m]) for m in NON_TEXT}


def _embed(space: Space, sources: Sequence[Source], modality: Modality, cache: Cache | None, show: bool) -> Tensor:
    with track_progress(f"{modality} embeddings", len(sources), show) as progress:
        _, embeddings, failures = select_encoder(space, modality).embed_sources(sources, cache, progress)
    for message in list(failures.values())[:MAX_NAMED_FAILURES]:
        notify(f"skipped: {message}", show)
    return embeddings


def _sample(sources: Sequence[Source], count: int) -> list[Source]:
    """Return a random sample with a fixed seed, in the order of the sources."""
    rows = np.sort(np.random.default_rng(0).permutation(len(sources))[:count])
    return [sources[i] for i in rows]


def _check_media_count(modality: Modality, count: int) -> None:
    if count < MIN_MEDIA:
        problem = f"--media has {count} readable items of {modality}; the centre needs at least {MIN_MEDIA}"
        raise UsageError(f"{problem}; add files, or give media of the other modality only")


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder for the bridge")
    names = {path.name for path in folder.iterdir()} - {BRIDGE_FILE} if folder.exists() else set[str]()
    if names and names - find_stale_temp_files(folder, [BRIDGE_FILE]):
        raise UsageError(f"{folder}: contains other files; give an empty or new folder for the bridge")
