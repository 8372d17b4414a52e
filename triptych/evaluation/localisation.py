"""Measure whether attributions point at the correct object, on synthetic data with known boxes and times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from torch import Tensor

from triptych.attribution import Attribution, compute_feature_attribution
from triptych.data.synthetic import SceneAnnotation, read_annotations
from triptych.data.synthetic.annotations import ObjectAnnotation
from triptych.errors import MediaError, UsageError
from triptych.evaluation.items import embed_sources
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source
from triptych.media import image
from triptych.space import Space, iter_blocks

DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (
    ("text", "image"),
    ("text", "audio"),
    ("audio", "image"),
    ("image", "audio"),
)
MIN_OVERLAP = 0.5  # a part is on an object if this fraction of the smaller region lies in the larger region
ALL_FACTORS = "all"


@dataclass(frozen=True)
class PointingResult:
    """The result of one query, with the chance levels of a uniform attribution."""

    hit: float  # pointing game: 1 if the part with the highest attribution is on the target, else 0; ties are averaged
    hit_chance_level: float  # fraction of the parts that are on the target
    mass: float  # fraction of the positive attribution inside the target
    mass_chance_level: float  # the mass of a uniform attribution
    # 1 if the mean attribution is higher on the target than on every other object, ½ for a tie, else 0; None if alone.
    discrimination: float | None = None


@dataclass(frozen=True)
class LocalisationResult:
    """Means over the queries of one direction and factor; the discrimination only over scenes with several objects."""

    query: Modality
    gallery: Modality
    factor: str  # the factor that the word names, or all
    num_queries: int
    hit: float
    hit_chance_level: float
    mass: float
    mass_chance_level: float
    discrimination: float | None
    num_discrimination_queries: int


def localise(space: Space, folder: Path, split: str = "test", show_progress: bool = True) -> list[LocalisationResult]:
    """Measure the localisation of every word and object of a split of synthetic data.

    Queries are words of captions (text) or objects of a scene (audio, image). The target of text → image is the box of
    the object that the word names; of text → audio, the time span of this object; of audio → image, the box of the
    object that sounds; of image → audio, the time span of the object in the image region.
    """
    scenes = [scene for scene in read_annotations(folder) if scene.split == split]
    if not scenes:
        raise UsageError(f"{folder}: no scene has split {split!r}")
    if not (folder / "images").is_dir():
        raise UsageError(
            f"{folder}: has only videos, in which objects move, but no images; generate synthetic data without --video"
        )
    image_size = image.load(Path(_scene_sources(folder, scenes[0], "image")[0].content)).size
    items: dict[Modality, dict[Source, Features]] = {
        modality: _embed_scenes(space, folder, scenes, modality, show_progress) for modality in space.modalities
    }
    localisations: list[LocalisationResult] = []
    for query, gallery in DIRECTIONS:
        if query not in items or gallery not in items:
            continue
        results_by_factor = defaultdict[str, list[PointingResult]](list)
        for scene in scenes:
            for attribution in _iter_attributions(space, folder, scene, items, query, gallery):
                for factor, result in _iter_pointing_results(attribution, scene, query, gallery, image_size):
                    results_by_factor[ALL_FACTORS].append(result)
                    results_by_factor[factor].append(result)
        localisations += [
            _average_results(query, gallery, factor, results) for factor, results in results_by_factor.items() if factor
        ]
    return localisations


def score_pointing(
    attribution: Tensor, regions: Sequence[Region], target: Region, distractors: Sequence[Region] = ()
) -> PointingResult | None:
    """Score an attribution (P,) over P parts with the given regions. Return None if no part has a region."""
    located = [i for i, region in enumerate(regions) if region]
    if not located:
        return None
    values = [float(attribution[i]) for i in located]
    fraction_inside = [overlap(regions[i], target) / region_size(regions[i]) for i in located]
    is_on_target = [float(_is_on_target(regions[i], target)) for i in located]
    peak = max(values)
    positive = [max(0.0, value) for value in values]
    total = sum(positive)
    discrimination = None
    if distractors:
        target_mean = _weighted_mean(values, fraction_inside)
        distractor_means = [
            _weighted_mean(values, [overlap(regions[i], other) / region_size(regions[i]) for i in located])
            for other in distractors
        ]
        valid_means = [value for value in distractor_means if value is not None]
        if target_mean is not None and valid_means:
            discrimination = 0.5 if target_mean == max(valid_means) else float(target_mean > max(valid_means))
    return PointingResult(
        hit=fmean(flag for flag, value in zip(is_on_target, values, strict=True) if value == peak),
        hit_chance_level=fmean(is_on_target),
        mass=sum(p * fraction for p, fraction in zip(positive, fraction_inside, strict=True)) / total
        if total
        else fmean(fraction_inside),
        mass_chance_level=fmean(fraction_inside),
        discrimination=discrimination,
    )


def overlap(a: Region, b: Region) -> float:
    """Return the length or area of the intersection; 0 if the regions are empty, or a time span and a box."""
    if len(a) != len(b) or not a:
        return 0.0
    half = len(a) // 2
    common = 1.0
    for low, high, other_low, other_high in zip(a[:half], a[half:], b[:half], b[half:], strict=True):
        common *= max(0.0, min(high, other_high) - max(low, other_low))
    return common


def region_size(region: Region) -> float:
    """Return the length or area of a region."""
    return overlap(region, region)


def _is_on_target(part: Region, target: Region) -> bool:
    """Return True if half of the part lies in the target, or half of the target lies in the part."""
    return bool(part) and overlap(part, target) >= MIN_OVERLAP * min(region_size(part), region_size(target)) > 0


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    return sum(v * weight for v, weight in zip(values, weights, strict=True)) / total if total else None


def _scene_sources(folder: Path, scene: SceneAnnotation, modality: Modality) -> list[Source]:
    """Return the sources of one modality of a scene."""
    if modality == "text":
        return [Source("text", caption.text) for caption in scene.captions]
    name = f"images/{scene.id}.png" if modality == "image" else f"audio/{scene.id}.wav"
    return [Source(modality, folder / name)]


def _embed_scenes(
    space: Space, folder: Path, scenes: Sequence[SceneAnnotation], modality: Modality, show_progress: bool
) -> dict[Source, Features]:
    """Return the features of each source of a modality."""
    sources = list(dict.fromkeys(source for scene in scenes for source in _scene_sources(folder, scene, modality)))
    embedded = embed_sources(space, sources, modality, show_progress, with_parts=True)
    for message in embedded.failures.values():
        raise MediaError(message)
    return {source: row for source, (_, row) in zip(sources, iter_blocks(embedded.features, 1), strict=True)}


def _iter_attributions(
    space: Space,
    folder: Path,
    scene: SceneAnnotation,
    items: dict[Modality, dict[Source, Features]],
    query: Modality,
    gallery: Modality,
) -> Iterator[Attribution]:
    """Yield the attribution between every two sources of two modalities of a scene."""
    first, second = sorted((query, gallery), key=MODALITIES.index)
    for a in _scene_sources(folder, scene, first):
        for b in _scene_sources(folder, scene, second):
            yield compute_feature_attribution(space, a, items[first][a], b, items[second][b])


def _iter_pointing_results(
    attribution: Attribution, scene: SceneAnnotation, query: Modality, gallery: Modality, image_size: tuple[int, int]
) -> Iterator[tuple[str, PointingResult]]:
    """Yield the factor and the result of every query of one attribution."""
    values, query_regions, gallery_regions = attribution.view_from(query)
    for factor, query_parts, object_index in _iter_queries(
        attribution, scene, query, gallery, query_regions, image_size
    ):
        distractors = [_object_region(annotation, gallery, image_size) for annotation in scene.objects]
        target = distractors.pop(object_index)
        result = (
            score_pointing(values[query_parts].mean(dim=0), gallery_regions, target, distractors)
            if query_parts
            else None
        )
        if result:
            yield factor, result


def _iter_queries(
    attribution: Attribution,
    scene: SceneAnnotation,
    query: Modality,
    gallery: Modality,
    regions: Sequence[Region],
    image_size: tuple[int, int],
) -> Iterator[tuple[str, list[int], int]]:
    """Yield the factor of each query, the indices of its parts, and the index of its target object."""
    if query != "text":
        for object_index, annotation in enumerate(scene.objects):
            target = _object_region(annotation, query, image_size)
            yield "", [i for i, region in enumerate(regions) if _is_on_target(region, target)], object_index
        return
    (caption,) = (caption for caption in scene.captions if caption.text == attribution.b.content)
    for word in caption.words:
        if word.factor and (word.boxes if gallery == "image" else word.time_spans):
            span = (word.start, word.end)
            yield word.factor, [i for i, region in enumerate(regions) if overlap(region, span)], word.object_indices[0]


def _object_region(annotation: ObjectAnnotation, modality: Modality, image_size: tuple[int, int]) -> Region:
    """Return the time span of an object in audio (first to last note), or the box around all its copies in an image."""
    if modality == "audio":
        return annotation.time_span
    width, height = image_size
    x0, y0, x1, y1 = annotation.box
    return (x0 / width, y0 / height, x1 / width, y1 / height)


def _average_results(
    query: Modality, gallery: Modality, factor: str, results: Sequence[PointingResult]
) -> LocalisationResult:
    discriminations = [r.discrimination for r in results if r.discrimination is not None]
    return LocalisationResult(
        query,
        gallery,
        factor,
        num_queries=len(results),
        hit=fmean(result.hit for result in results),
        hit_chance_level=fmean(result.hit_chance_level for result in results),
        mass=fmean(result.mass for result in results),
        mass_chance_level=fmean(result.mass_chance_level for result in results),
        discrimination=fmean(discriminations) if discriminations else None,
        num_discrimination_queries=len(discriminations),
    )
