"""Measure whether attributions point at the correct object, on synthetic data with known object boxes and times."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

from torch import Tensor

from triptych.attribution import Attribution, compute_feature_attribution
from triptych.data.synthetic import SceneAnnotation, read_annotations
from triptych.data.synthetic.annotations import ObjectAnnotation
from triptych.errors import MediaError, UsageError
from triptych.evaluation.items import embed_sources
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source, iter_blocks
from triptych.media import image
from triptych.space import Space

Direction = tuple[Modality, Modality]  # modality of the query, and modality of the gallery
DIRECTIONS: tuple[Direction, ...] = (("text", "image"), ("text", "audio"), ("audio", "image"), ("image", "audio"))
MIN_OVERLAP = 0.5  # a part is on an object if at least this fraction of the smaller region lies in the larger region
ALL_FACTORS = "all"


@dataclass(frozen=True)
class PointingResult:
    """The localisation scores of one query, with the scores of a uniform attribution as chance levels."""

    hit: float  # pointing game: 1 if the part with the highest attribution is on the target, else 0; ties are averaged
    hit_chance_level: float  # fraction of the parts that are on the target
    mass: float  # fraction of the positive attribution that lies inside the target
    mass_chance_level: float  # the mass of a uniform attribution
    # 1 if the mean attribution is higher on the target than on every other object, ½ for a tie, else 0.
    # None if the scene has no other object.
    discrimination: float | None = None


@dataclass(frozen=True)
class LocalisationResult:
    """The mean localisation scores of the queries of one direction and factor.

    The mean discrimination covers only the queries of scenes with several objects.
    """

    query: Modality
    gallery: Modality
    factor: str  # the factor (such as the colour) that the words name, or "all"
    num_queries: int
    hit: float
    hit_chance_level: float
    mass: float
    mass_chance_level: float
    discrimination: float | None
    num_discrimination_queries: int


def localise(space: Space, folder: Path, split: str = "test", show_progress: bool = True) -> list[LocalisationResult]:
    """Measure how well attributions localise every word and object in one split of synthetic data.

    A query is a word of a caption (text) or an object of a scene (audio, image). For text → image, the target is the
    box of the object that the word names. For text → audio, the target is the time span of the object that the word
    names. For audio → image, the target is the box of the object that sounds. For image → audio, the target is the time
    span of the object in the image region.
    """
    scenes = [scene for scene in read_annotations(folder) if scene.split == split]
    if not scenes:
        raise UsageError(f"{folder}: no scene is in split {split!r}")
    if not (folder / "images").is_dir():
        problem = f"{folder}: has only videos, in which objects move, but no images"
        raise UsageError(f"{problem}; generate synthetic data without --video")
    image_size = image.load(_scene_sources(folder, scenes[0], "image")[0].path).size
    features = _embed_scenes(space, folder, scenes, show_progress)
    localisations: list[LocalisationResult] = []
    for direction in DIRECTIONS:
        if not set(direction) <= set(space.modalities):
            continue
        by_factor = defaultdict[str, list[PointingResult]](list)
        first, second = sorted(direction, key=MODALITIES.index)
        for scene in scenes:
            for a, b in product(_scene_sources(folder, scene, first), _scene_sources(folder, scene, second)):
                attribution = compute_feature_attribution(space, a, features[a], b, features[b])
                for factor, result in _iter_pointing_results(attribution, scene, direction, image_size):
                    by_factor[ALL_FACTORS].append(result)
                    by_factor[factor].append(result)
        localisations += [_average_results(direction, factor, rs) for factor, rs in by_factor.items() if factor]
    return localisations


def score_pointing(
    attribution: Tensor, regions: Sequence[Region], target: Region, distractors: Sequence[Region] = ()
) -> PointingResult | None:
    """Compare an attribution (P,) over P parts with the target region. Return None if no part has a region."""
    values = [float(value) for value, region in zip(attribution, regions, strict=True) if region]
    located = [region for region in regions if region]
    if not located:
        return None

    def fractions_inside(target: Region) -> list[float]:
        return [intersection_size(region, target) / region_size(region) for region in located]

    inside, is_on_target = fractions_inside(target), [float(_is_on_target(region, target)) for region in located]
    target_mean, discrimination = _weighted_mean(values, inside), None
    other_means = [_weighted_mean(values, fractions_inside(other)) for other in distractors]
    highest = max((mean for mean in other_means if mean is not None), default=None)
    if target_mean is not None and highest is not None:
        discrimination = 0.5 if target_mean == highest else float(target_mean > highest)
    mass = _weighted_mean(inside, [max(0.0, value) for value in values])
    return PointingResult(
        hit=fmean(flag for flag, value in zip(is_on_target, values, strict=True) if value == max(values)),
        hit_chance_level=fmean(is_on_target),
        mass=fmean(inside) if mass is None else mass,
        mass_chance_level=fmean(inside),
        discrimination=discrimination,
    )


def intersection_size(a: Region, b: Region) -> float:
    """Return the length or area of the intersection of two regions.

    The result is 0 if a region is empty, or if one region is a time span and the other region is a box.
    """
    if len(a) != len(b) or not a:
        return 0.0
    half = len(a) // 2
    common = 1.0
    for low, high, other_low, other_high in zip(a[:half], a[half:], b[:half], b[half:], strict=True):
        common *= max(0.0, min(high, other_high) - max(low, other_low))
    return common


def region_size(region: Region) -> float:
    """Return the length or area of a region."""
    return intersection_size(region, region)


def _is_on_target(part: Region, target: Region) -> bool:
    """Return True if at least half of the part lies in the target, or at least half of the target lies in the part."""
    return intersection_size(part, target) >= MIN_OVERLAP * min(region_size(part), region_size(target)) > 0


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
    space: Space, folder: Path, scenes: Sequence[SceneAnnotation], show_progress: bool
) -> dict[Source, Features]:
    """Return the features of each source in all scenes."""
    features: dict[Source, Features] = {}
    for modality in space.modalities:
        sources = list(dict.fromkeys(source for scene in scenes for source in _scene_sources(folder, scene, modality)))
        embedded = embed_sources(space, sources, modality, show_progress, with_parts=True)
        for message in embedded.failures.values():
            raise MediaError(message)
        features |= {source: row for source, (_, row) in zip(sources, iter_blocks(embedded.features, 1), strict=True)}
    return features


def _iter_pointing_results(
    attribution: Attribution, scene: SceneAnnotation, direction: Direction, image_size: tuple[int, int]
) -> Iterator[tuple[str, PointingResult]]:
    """Yield the factor and the localisation scores of every query of one attribution."""
    values, _, gallery_regions = attribution.view_from(direction[0])
    for factor, query_parts, object_index in _iter_queries(attribution, scene, direction, image_size):
        distractors = [_object_region(annotation, direction[1], image_size) for annotation in scene.objects]
        target = distractors.pop(object_index)
        mean = values[query_parts].mean(dim=0)
        if query_parts and (result := score_pointing(mean, gallery_regions, target, distractors)):
            yield factor, result


def _iter_queries(
    attribution: Attribution, scene: SceneAnnotation, direction: Direction, image_size: tuple[int, int]
) -> Iterator[tuple[str, list[int], int]]:
    """Yield the factor of each query, the indices of its parts, and the index of its target object."""
    query, gallery = direction
    _, regions, _ = attribution.view_from(query)
    if query != "text":
        for object_index, annotation in enumerate(scene.objects):
            target = _object_region(annotation, query, image_size)
            yield "", [i for i, region in enumerate(regions) if _is_on_target(region, target)], object_index
        return
    (caption,) = (caption for caption in scene.captions if caption.text == attribution.b.content)
    for word in caption.words:
        if word.factor and (word.boxes if gallery == "image" else word.time_spans):
            span = (word.start, word.end)
            query_parts = [i for i, region in enumerate(regions) if intersection_size(region, span)]
            yield word.factor, query_parts, word.object_indices[0]


def _object_region(annotation: ObjectAnnotation, modality: Modality, image_size: tuple[int, int]) -> Region:
    """Return the time span of an object in audio (first to last note), or the box around all its copies in an image."""
    if modality == "audio":
        return annotation.time_span
    width, height = image_size
    x0, y0, x1, y1 = annotation.box
    return (x0 / width, y0 / height, x1 / width, y1 / height)


def _average_results(direction: Direction, factor: str, results: Sequence[PointingResult]) -> LocalisationResult:
    names = ("hit", "hit_chance_level", "mass", "mass_chance_level")
    discriminations = [r.discrimination for r in results if r.discrimination is not None]
    return LocalisationResult(
        *direction,
        factor,
        num_queries=len(results),
        **{name: fmean(getattr(result, name) for result in results) for name in names},
        discrimination=fmean(discriminations) if discriminations else None,
        num_discrimination_queries=len(discriminations),
    )
