"""Bridge two spaces that were trained apart, and compare photographs with audio: beside the direct sum and `mixed`.

Space 1 is trained on Flickr8k (photographs and captions), space 2 on four folds of ESC-50 (audio and captions). The
bridge is fitted to texts. No row has both a photograph and audio. Test data: the test split of Flickr8k, and the fifth
fold of ESC-50. The numbers and criteria were chosen without the test data. The words that select photographs of dogs,
the sea and vehicles (`WORDS`) were fixed after a trial that had seen test figures, and not changed since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from bench.real_data import find_dataset
from triptych.bridge_fitting import bridge_space
from triptych.checkpoint import load
from triptych.composite import CompositeEncoder
from triptych.data import datasets, manifest
from triptych.data.cache import Cache
from triptych.data.datasets.convert import convert
from triptych.data.manifest import Row
from triptych.interfaces import Modality, Source
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.training.loop import train

RUN_FOLDER = Path("runs/bridge")
FOLDS = (1, 2, 3)  # the fold of ESC-50 on which the audio is tested; also the seed of training
NUM_CAPTIONS = 6000  # captions of photographs to which the bridge is fitted, beside all texts of the audio
MIN_CAPTIONS = 3  # a photograph shows a thing if at least this many of its five captions have one of the words
WORDS = {"dog": "dog|puppy", "sea waves": "wave|sea|ocean", "engine": "car|truck|motorcycle|vehicle"}  # by class
NUM_RESAMPLES = 2000
REFERENCE = "one space (mixed)"


def main() -> None:
    """Train the spaces of each fold, fit bridges, and print the rates of correct first hits."""
    folders = {name: find_dataset(name) for name in ("flickr8k", "esc50")}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        print(f"{', '.join(missing)} not available: set TRIPTYCH_DATA to the folder that contains it")
        return
    photographs = RUN_FOLDER / "data" / "flickr8k.csv"
    convert("flickr8k", datasets.DATASETS["flickr8k"], folders["flickr8k"], photographs, show_progress=False)
    outcomes: dict[str, list[dict[str, np.ndarray]]] = {}
    for fold in FOLDS:
        audio = RUN_FOLDER / "data" / f"esc50-{fold}.csv"
        options = {"fold": fold, "splits": "two"}
        convert("esc50", datasets.DATASETS["esc50"], folders["esc50"], audio, options, show_progress=False)
        for method, space in _load_spaces(photographs, audio, fold).items():
            outcome = _measure(space, _read_rows(photographs, "test"), _read_rows(audio, "test"))
            outcomes.setdefault(method, []).append(outcome)
            print(f"fold {fold}, {method}: " + ", ".join(f"{k} {100 * v.mean():.0f}%" for k, v in outcome.items()))
    _print_table(outcomes)


def _load_spaces(photographs: Path, audio: Path, fold: int) -> dict[str, Space]:
    """Train three spaces, and return the spaces to compare."""
    images, clips = (
        _train("clap", [data], f"{name}-{fold}", fold)
        for name, data in (("image-text", photographs), ("audio-text", audio))
    )
    both = _train("mixed", [photographs, audio], f"mixed-{fold}", fold)
    direct_sum = load(f"{images}+{clips}")
    rows: dict[Modality, tuple[Row, ...]] = {
        "image": _read_rows(photographs, "train"),
        "audio": _read_rows(audio, "train"),
    }
    captions = [text for row in rows["image"] for text in row.texts]
    rng = np.random.default_rng(fold)
    texts = [captions[i] for i in rng.permutation(len(captions))[:NUM_CAPTIONS]]
    texts += [text for row in rows["audio"] for text in row.texts]
    media: dict[Modality, list[Source]] = {m: _sources(of, m) for m, of in rows.items()}
    spaces = {"direct sum": direct_sum}
    for method, corpus, used_media in (
        ("bridge: captions, media", texts, media),
        ("bridge: phrases, media", None, media),
        ("bridge: captions", texts, None),
        ("bridge: phrases", None, None),
    ):
        folder = RUN_FOLDER / "-".join(["bridge", str(fold), *re.findall(r"\w+", method)[1:]])
        report = bridge_space(direct_sum, folder, corpus, used_media, cache=Cache.default(), show_progress=False)
        recalls = f"R@1 {report['recall_ab'][1]:.1f} and {report['recall_ba'][1]:.1f}"
        print(f"fold {fold}, {method}: {report['num_texts']} texts; {report['num_test_texts']} held out: {recalls}")
        spaces[method] = load(folder)
    return spaces | {REFERENCE: load(both)}


def _train(recipe: str, manifests: Sequence[Path], name: str, seed: int) -> Path:
    """Train a space with the last epoch as result, and return its folder. An interrupted run is resumed."""
    first, *others = map(str, manifests)
    overrides = [f"data.manifest={first}", f"data.extra_manifests={others}", "data.allow_outside=true"]
    overrides += [f"training.seed={seed}", "training.eval_every=0"]
    train(Recipe.load(recipe, overrides), RUN_FOLDER / name, show_progress=False)
    return RUN_FOLDER / name


def _measure(space: Space, photographs: Sequence[Row], clips: Sequence[Row]) -> dict[str, np.ndarray]:
    """Return, for each kind of query, whether the first hit is correct for each query."""
    images, audio = _embed(space, _sources(photographs, "image")), _embed(space, _sources(clips, "audio"))
    labels = np.array([row.label for row in clips])
    # Rows with equal scores are in random order, so that a space that scores every pair 0 is at the chance level.
    scores = space.similarity(images, audio).double().numpy()
    scores += np.random.default_rng(0).uniform(0, 1e-9, scores.shape)
    outcome = {}
    for label, words in WORDS.items():
        shows_it = np.array([_count_captions(row, words) >= MIN_CAPTIONS for row in photographs])
        is_label = labels == label
        outcome[f"photograph → {label}"] = is_label[scores[shows_it].argmax(axis=1)]
        outcome[f"{label} → photograph"] = shows_it[scores[:, is_label].argmax(axis=0)]
        outcome[f"chance {label}"] = np.array([is_label.mean(), shows_it.mean()])
    names = sorted(set(labels))
    prompts = _embed(space, [Source("text", f"this is a sound of {name}") for name in names])
    hits = labels[space.similarity(audio, prompts).numpy().argmax(axis=0)]
    outcome["class name → audio"] = hits == np.array(names)
    captions = _embed(space, [Source("text", row.texts[0]) for row in photographs])
    ranks = _ranks(space.similarity(images, captions).T)
    outcome["caption → photograph, R@10"] = (ranks <= 10).numpy()
    return outcome


def _print_table(outcomes: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> None:
    """Print the mean over the folds and the difference from the jointly trained space, in %, with 95% intervals.

    The intervals are from resampled queries; those of the difference are paired. The items that are searched stay the
    same.
    """
    for method, folds in outcomes.items():
        print(method)
        for name in folds[0]:
            if name.startswith("chance"):
                print(f"   {name}: {', '.join(f'{100 * x:.1f}%' for x in folds[0][name])}")
                continue
            values = _join_folds(folds, name)
            by_fold = ", ".join(f"{100 * fold[name].mean():.0f}" for fold in folds)
            line = f"   {name}: {_format_interval(values)}, {len(values)} queries; folds {by_fold}"
            if method != REFERENCE:
                line += f"; minus mixed: {_format_interval(values - _join_folds(outcomes[REFERENCE], name), '+.1f')}"
            print(line)


def _join_folds(folds: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """Return one value per query. Photographs and captions are the same in each fold: the mean over the folds."""
    values = [fold[name].astype(float) for fold in folds]
    is_clip = name.endswith("→ photograph") and not name.startswith("caption")
    return np.concatenate(values) if is_clip else np.mean(values, axis=0)


def _format_interval(values: np.ndarray, number_format: str = ".1f") -> str:
    """Return the mean in % and its 95% interval from resampled values; equal lengths give equal resamples."""
    rng = np.random.default_rng(0)
    means = 100 * values[rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))].mean(axis=1)
    low, high = (format(bound, number_format) for bound in np.quantile(means, (0.025, 0.975)))
    return f"{100 * values.mean():{number_format}} ({low} to {high})"


def _read_rows(path: Path, split: str) -> tuple[Row, ...]:
    return manifest.read(path, allow_outside=True).split(split).rows


def _sources(rows: Sequence[Row], modality: Modality) -> list[Source]:
    return [Source(modality, path) for row in rows if (path := row.image if modality == "image" else row.audio)]


def _embed(space: Space, sources: Sequence[Source]) -> Tensor:
    """Return the embeddings, computed from the cached features of the members."""
    modality, cache = sources[0].modality, Cache.default()
    encoder = space.encoder(modality)
    if isinstance(encoder, CompositeEncoder):
        return encoder.embed_sources(sources, cache)[1]
    return space.embed(sources, modality, with_parts=False, cache=cache).features.embedding


def _count_captions(row: Row, words: str) -> int:
    return sum(bool(re.search(rf"\b({words})s?\b", text, re.IGNORECASE)) for text in row.texts)


def _ranks(scores: Tensor) -> Tensor:
    return (scores >= scores.diagonal()[:, None]).sum(dim=1)
