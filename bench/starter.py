"""The starter space, without training: choose the settings of its heads on some data, and measure it on other data.

The settings of the image head are chosen on the dev split of Flickr8k and measured on the test split. The settings of
the audio head are chosen on folds 1 and 2 of ESC-50 and measured on folds 3, 4 and 5. No pair is used in any other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bench.real_data import find_dataset, read_esc50_clips, read_flickr8k_captions
from triptych.data.cache import Cache
from triptych.data.features import compute_or_load
from triptych.heads.class_names import ClassNamesHead
from triptych.interfaces import Modality, Source
from triptych.progress import track_progress
from triptych.recipe import Recipe
from triptych.space import Space
from triptych.starter import STARTER, embed_classes, embed_text_centre, load_class_embeddings

CHOICE_FOLDS = (1, 2)
QUERY_PROMPTS = ("the sound of {}", "{}")  # the settings are chosen with the first
CATEGORIES, TOP_KS = (False, True), (5, 10, 0)
IMAGE_TEMPERATURES, IMAGE_DECORRELATIONS = (1.5, 2.0, 2.5, 3.0), (0.0, 0.03, 0.1, 0.3)
AUDIO_TEMPERATURES, AUDIO_DECORRELATIONS = (1.0, 1.25, 1.5), (0.3, 1.0, 2.0, 4.0)
IMAGE_PROMPTS = (("{}",), ("a photo of a {}",), ("{}", "a photo of a {}"))
AUDIO_PROMPTS = (("the sound of {}",), ("{}", "the sound of {}"), ("the sound of {}", "a recording of {}"))
# Words in captions of Flickr8k, and the classes of ESC-50 that are the sound of the thing.
THINGS = {
    "dog": ("dog",),
    "bird": ("chirping_birds", "crow"),
    "ocean": ("sea_waves",),
    "car": ("car_horn", "engine"),
    "baby": ("crying_baby",),
    "train": ("train",),
    "sheep": ("sheep",),
    "cat": ("cat",),
}
MIN_CAPTIONS = 3  # a photograph shows a thing if at least this many of its five captions name it
LOW_PRECISION = 0.5  # classes of sounds with a lower precision@10 on CHOICE_FOLDS are listed
MIN_PHOTOGRAPHS = 3  # things on fewer photographs are not measured


def main() -> None:
    """Choose the settings, and print the choice and the figures of the recipe's settings."""
    flickr8k, esc50 = find_dataset("flickr8k"), find_dataset("esc50")
    if flickr8k is None or esc50 is None:
        print("flickr8k and esc50 are needed: set TRIPTYCH_DATA to the folder that contains them")
        return
    recipe = Recipe.load(STARTER)
    bench = StarterBench(Space(recipe).eval())
    dev, test = (bench.read_photographs(flickr8k, split) for split in ("dev", "test"))
    clips = bench.read_clips(esc50)
    is_choice = torch.tensor([fold in CHOICE_FOLDS for _, fold, _, _ in clips.rows])
    settings: dict[Modality, dict[str, Any]] = {m: dict(c.settings) for m, c in recipe.space.heads.items()}
    bench.choose_image_settings(dev)
    bench.set_settings(settings)
    bench.choose_audio_settings(clips, is_choice)
    bench.set_settings(settings)
    print("the settings of the recipe:")
    for name, photographs in (("dev", dev), ("test", test)):
        scores = " ".join(f"{100 * value:.1f}" for value in bench.recall(photographs))
        print(f"  Flickr8k {name}, text → image, {len(photographs.paths)} photographs: R@1, 5, 10 = {scores}")
    rows = {"folds 1, 2": is_choice, "folds 3, 4, 5": ~is_choice, "all folds": torch.ones_like(is_choice)}
    for (name, selected), prompt in product(rows.items(), QUERY_PROMPTS):
        accuracy, precision = bench.name_clips(clips, selected, prompt)
        figures = f"{100 * accuracy:.1f}% named, precision@10 {100 * precision:.1f}%"
        print(f"  ESC-50 {name}, {int(selected.sum())} clips, {prompt!r}: {figures}")
    bench.print_weak_classes(clips, is_choice)
    bench.print_cross_modal(test, clips)


class Photographs:
    """The pooled features of photographs, and their captions with embeddings of the text encoder."""

    def __init__(self, paths: list[Path], captions: list[list[str]], features: Tensor, texts: Tensor) -> None:
        self.paths, self.captions, self.features, self.texts = paths, captions, features, texts


class Clips:
    """The pooled features of audio clips, and their fold, class index and class name."""

    def __init__(self, rows: Sequence[tuple[Path, int, int, str]], features: Tensor) -> None:
        self.rows, self.features = rows, features
        self.classes = torch.tensor([index for _, _, index, _ in rows])
        self.names = [name for _, name in sorted({(index, name) for _, _, index, name in rows})]


class StarterBench:
    """A space whose heads get different settings, on cached features."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._class_embeddings: dict[Any, Tensor] = {}
        self._text_centre = embed_text_centre(space.encoder("text"), Cache.default())

    def read_photographs(self, folder: Path, split: str) -> Photographs:
        """Read the photographs of a split and their captions."""
        names = set((folder / f"Flickr_8k.{split}Images.txt").read_text(encoding="utf-8").split())
        captions = {path: texts for path, texts in read_flickr8k_captions(folder).items() if path.name in names}
        images = self._pool("image", [Source("image", path) for path in captions])
        texts = self._pool("text", [Source("text", text) for texts in captions.values() for text in texts])
        return Photographs(list(captions), list(captions.values()), images, texts)

    def read_clips(self, folder: Path) -> Clips:
        """Read the clips of ESC-50."""
        rows = read_esc50_clips(folder)
        return Clips(rows, self._pool("audio", [Source("audio", path) for path, *_ in rows]))

    def _pool(self, modality: Modality, sources: list[Source]) -> Tensor:
        with track_progress(f"{modality} features", len(sources)) as progress:
            features = compute_or_load(self.space.encoder(modality), sources, Cache.default(), progress=progress)
        return features.pooled[[features.index_of[source] for source in sources]]

    def set_settings(self, settings: dict[Modality, dict[str, Any]]) -> None:
        """Change settings of the heads, and compute the weights of all heads again."""
        for modality, values in settings.items():
            for name, value in values.items():
                setattr(self.space.heads[modality], name, value)
        embeddings: dict[Modality, Tensor] = {}
        for modality in ("image", "audio"):
            head = cast(ClassNamesHead, self.space.heads[modality])
            key = modality, head.prompts, head.categories
            if key not in self._class_embeddings:
                phrases = head.class_phrases()
                self._class_embeddings[key] = embed_classes(self.space.encoder("text"), phrases, Cache.default())
            embeddings[modality] = self._class_embeddings[key]
        load_class_embeddings(self.space, embeddings, self._text_centre)

    @torch.inference_mode()
    def embed(self, modality: Modality, pooled: Tensor) -> Tensor:
        """Return the embeddings of pooled features (N, 2, W)."""
        return self.space.project(modality, pooled, torch.ones(pooled.shape[:2], dtype=torch.bool), "pooled")

    def recall(self, photographs: Photographs) -> list[float]:
        """Return R@1, R@5 and R@10 of captions as queries for photographs; ties count as errors."""
        scores = self.embed("text", photographs.texts) @ self.embed("image", photographs.features).T
        target = torch.tensor([i for i, texts in enumerate(photographs.captions) for _ in texts])
        ranks = (scores >= scores.gather(1, target[:, None])).sum(dim=1)
        return [(ranks <= k).float().mean().item() for k in (1, 5, 10)]

    def name_clips(self, clips: Clips, selected: Tensor, prompt: str) -> tuple[float, float]:
        """Return the share of clips whose class is the most similar text, and the mean precision@10 of the texts."""
        scores, classes = self._score_names(clips, selected, prompt), clips.classes[selected]
        precision = precision_at_10(scores, classes).mean()
        return (scores.argmax(dim=1) == classes).float().mean().item(), precision.item()

    def _score_names(self, clips: Clips, selected: Tensor, prompt: str) -> Tensor:
        """Return the scores of clips (rows) with the names of the classes."""
        texts = [Source("text", prompt.replace("{}", name.replace("_", " "))) for name in clips.names]
        return self.embed("audio", clips.features[selected]) @ self.embed("text", self._pool_quietly(texts)).T

    def print_weak_classes(self, clips: Clips, selected: Tensor) -> None:
        """Print the classes with a low precision@10, and the mean precision@10 of the other classes."""
        values = precision_at_10(self._score_names(clips, selected, QUERY_PROMPTS[0]), clips.classes[selected])
        order = values.argsort().tolist()
        weak = [f"{clips.names[c]} {100 * values[c]:.0f}%" for c in order if values[c] < LOW_PRECISION]
        others = 100 * values[values >= LOW_PRECISION].mean()
        print(f"  precision@10 on folds 1, 2: {', '.join(weak)}; mean of the other classes {others:.1f}%")

    def _pool_quietly(self, texts: list[Source]) -> Tensor:
        features = compute_or_load(self.space.encoder("text"), texts, Cache.default())
        return features.pooled[[features.index_of[text] for text in texts]]

    def choose_image_settings(self, dev: Photographs) -> None:
        """Print the settings of the image head with the highest mean of R@1, R@5 and R@10 on the dev split."""
        results = []
        grid = iter_settings(
            prompts=IMAGE_PROMPTS,
            categories=CATEGORIES,
            decorrelation=IMAGE_DECORRELATIONS,
            temperature=IMAGE_TEMPERATURES,
        )
        for settings in grid:
            self.set_settings({"image": settings})
            results.append((sum(self.recall(dev)) / 3, settings))
        print_best("image, Flickr8k dev, mean of R@1, 5, 10", results)

    def choose_audio_settings(self, clips: Clips, is_choice: Tensor) -> None:
        """Print the settings of the audio head with the highest mean of accuracy and precision@10 on CHOICE_FOLDS."""
        grid = iter_settings(
            prompts=AUDIO_PROMPTS, categories=CATEGORIES, decorrelation=AUDIO_DECORRELATIONS, top_k=TOP_KS,
            temperature=AUDIO_TEMPERATURES,
        )  # fmt: skip
        results = []
        for settings in grid:
            self.set_settings({"audio": settings})
            results.append((sum(self.name_clips(clips, is_choice, QUERY_PROMPTS[0])) / 2, settings))
        print_best("audio, ESC-50 folds 1 and 2, mean of accuracy and precision@10", results)

    def print_cross_modal(self, photographs: Photographs, clips: Clips) -> None:
        """Print how often photographs of a thing find its sound, and clips of the sound photographs of the thing."""
        images, sounds = self.embed("image", photographs.features), self.embed("audio", clips.features)
        scores = images @ sounds.T
        for word, class_names in THINGS.items():
            shown = torch.tensor([count_captions(texts, word) >= MIN_CAPTIONS for texts in photographs.captions])
            heard = torch.isin(clips.classes, torch.tensor([clips.names.index(name) for name in class_names]))
            if shown.sum() < MIN_PHOTOGRAPHS:
                continue
            for title, matrix, correct in (
                (f"{int(shown.sum())} photographs of {word} → clips of {', '.join(class_names)}", scores[shown], heard),
                (f"{int(heard.sum())} clips → photographs of {word}", scores.T[heard], shown),
            ):
                hits = correct[matrix.topk(10, dim=1).indices].float()
                print(
                    f"  {title}: first correct {100 * hits[:, 0].mean():.0f}%, precision@10 {100 * hits.mean():.0f}%, "
                    f"chance {100 * correct.float().mean():.1f}%"
                )


def precision_at_10(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the precision@10 of each class as query; scores are (clips, classes)."""
    return (classes[scores.topk(10, dim=0).indices] == torch.arange(scores.shape[1])).float().mean(dim=0)


def iter_settings(**values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of several settings."""
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def print_best(title: str, results: Sequence[tuple[float, dict[str, Any]]], count: int = 5) -> None:
    """Print the best settings; the first of equal settings is the best."""
    print(f"{title}:")
    for score, settings in sorted(results, key=lambda result: -result[0])[:count]:
        print(f"  {100 * score:.2f}  {settings}")


def count_captions(captions: Sequence[str], word: str) -> int:
    """Return how many captions contain a word or its plural."""
    return sum(word in caption.lower().split() or f"{word}s" in caption.lower().split() for caption in captions)
