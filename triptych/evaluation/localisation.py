"""Does the heat fall on the named thing? Asked of a made world, where every place and time is known."""

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
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source
from triptych.media import image
from triptych.progress import track_progress
from triptych.space import Space, iter_blocks

DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (
    ("text", "image"),
    ("text", "audio"),
    ("audio", "image"),
    ("image", "audio"),
)
MIN_OVERLAP = 0.5  # of the smaller of two places must lie in the other, for a part to be on a thing
ALL_FACTORS = "all"


@dataclass(frozen=True)
class PointingResult:
    """How one question went, and what a heat that knows nothing would give."""

    hit: float  # is the hottest part on the thing? Several that are equally hot share the answer
    hit_chance_level: float  # share of the parts that are on it
    mass: float  # share of the positive heat that lies inside it
    mass_chance_level: float  # the same of even heat: its share of the area or time
    discrimination: float | None = (
        None  # is it hotter than the other things of its scene? 1, 0 or ½; None where it is alone
    )


@dataclass(frozen=True)
class LocalisationResult:
    """The means over all questions of one kind; `apart` over those of scenes with several things, chance ½."""

    query: Modality
    gallery: Modality
    factor: str  # the factor that the words speak of, or all
    num_queries: int
    hit: float
    hit_chance_level: float
    mass: float
    mass_chance_level: float
    discrimination: float | None
    num_discrimination_queries: int


def localise(space: Space, folder: Path, split: str = "test", show_progress: bool = True) -> list[LocalisationResult]:
    """Ask a space about every word, sounding thing and visible thing of a split of a made world.

    text → image: where in the picture is what a word speaks of; text → audio: when; audio → image: where is what is
    heard now; image → audio: when is what is seen here. Words are asked about one by one, things once a scene.
    """
    truths = [truth for truth in read_annotations(folder) if truth.split == split]
    if not truths:
        raise UsageError(f"{folder}: no scene of its truth is of split {split!r}")
    if not (folder / "images").is_dir():
        raise UsageError(f"{folder}: has no pictures, only films, whose things move; make a world without --video")
    image_size = image.load(Path(_scene_sources(folder, truths[0], "image")[0].content)).size
    items: dict[Modality, dict[Source, Features]] = {
        modality: _embed_sources(space, folder, truths, modality, show_progress) for modality in space.modalities
    }
    localisations: list[LocalisationResult] = []
    for query, gallery in DIRECTIONS:
        if query not in items or gallery not in items:
            continue
        results_by_factor = defaultdict[str, list[PointingResult]](list)
        for truth in truths:
            for attribution in _iter_attributions(space, folder, truth, items, query, gallery):
                for factor, result in _iter_pointing_results(attribution, truth, query, gallery, image_size):
                    results_by_factor[ALL_FACTORS].append(result)
                    results_by_factor[factor].append(result)
        localisations += [
            _average_results(query, gallery, factor, results) for factor, results in results_by_factor.items() if factor
        ]
    return localisations


def score_pointing(
    attribution: Tensor, regions: Sequence[Region], target: Region, distractors: Sequence[Region] = ()
) -> PointingResult | None:
    """How well the heat (P,) of parts at these places falls on the right one; None where no part has a place."""
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
    """The length or area that two places have in common; nothing where they are of different kinds or nowhere."""
    if len(a) != len(b) or not a:
        return 0.0
    half = len(a) // 2
    common = 1.0
    for low, high, other_low, other_high in zip(a[:half], a[half:], b[:half], b[half:], strict=True):
        common *= max(0.0, min(high, other_high) - max(low, other_low))
    return common


def region_size(region: Region) -> float:
    """The length or area of a place."""
    return overlap(region, region)


def _is_on_target(part: Region, target: Region) -> bool:
    """Whether half of the part lies in the thing, or half of the thing in the part: it may be the smaller."""
    return bool(part) and overlap(part, target) >= MIN_OVERLAP * min(region_size(part), region_size(target)) > 0


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    return sum(v * weight for v, weight in zip(values, weights, strict=True)) / total if total else None


def _scene_sources(folder: Path, truth: SceneAnnotation, modality: Modality) -> list[Source]:
    """What a scene gives of a modality."""
    if modality == "text":
        return [Source("text", caption.text) for caption in truth.captions]
    name = f"images/{truth.id}.png" if modality == "image" else f"audio/{truth.id}.wav"
    return [Source(modality, folder / name)]


def _embed_sources(
    space: Space, folder: Path, truths: Sequence[SceneAnnotation], modality: Modality, show_progress: bool
) -> dict[Source, Features]:
    """The features of every source of a modality, one item each."""
    sources = list(dict.fromkeys(source for truth in truths for source in _scene_sources(folder, truth, modality)))
    with track_progress(f"embedding {modality}", len(sources), show_progress) as progress:
        embedded = space.embed(sources, modality, progress=progress)
    for message in embedded.failures.values():
        raise MediaError(message)
    return {source: row for source, (_, row) in zip(sources, iter_blocks(embedded.features, 1), strict=True)}


def _iter_attributions(
    space: Space,
    folder: Path,
    truth: SceneAnnotation,
    items: dict[Modality, dict[Source, Features]],
    query: Modality,
    gallery: Modality,
) -> Iterator[Attribution]:
    """The heat between everything of two modalities in a scene."""
    first, second = sorted((query, gallery), key=MODALITIES.index)
    for a in _scene_sources(folder, truth, first):
        for b in _scene_sources(folder, truth, second):
            yield compute_feature_attribution(space, a, items[first][a], b, items[second][b])


def _iter_pointing_results(
    attribution: Attribution, truth: SceneAnnotation, query: Modality, gallery: Modality, image_size: tuple[int, int]
) -> Iterator[tuple[str, PointingResult]]:
    """Every question of one heat, by the factor it is about, and how it went."""
    values, query_regions, gallery_regions = attribution.view_from(query)
    for factor, query_parts, performer_index in _iter_queries(
        attribution, truth, query, gallery, query_regions, image_size
    ):
        target, *distractors = [
            _performer_region(performer, gallery, image_size)
            for performer in (
                truth.objects[performer_index],
                *truth.objects[:performer_index],
                *truth.objects[performer_index + 1 :],
            )
        ]
        result = (
            score_pointing(values[query_parts].mean(dim=0), gallery_regions, target, distractors)
            if query_parts
            else None
        )
        if result:
            yield factor, result


def _iter_queries(
    attribution: Attribution,
    truth: SceneAnnotation,
    query: Modality,
    gallery: Modality,
    regions: Sequence[Region],
    image_size: tuple[int, int],
) -> Iterator[tuple[str, list[int], int]]:
    """What is asked about, the parts that ask, and the number of the performer they mean."""
    if query != "text":
        for performer_index, performer in enumerate(truth.objects):
            target = _performer_region(performer, query, image_size)
            yield "", [i for i, place in enumerate(regions) if _is_on_target(place, target)], performer_index
        return
    (caption,) = (caption for caption in truth.captions if caption.text == attribution.b.content)
    for word in caption.words:
        if word.factor and (word.boxes if gallery == "image" else word.time_spans):
            span = (word.start, word.end)
            yield word.factor, [i for i, place in enumerate(regions) if overlap(place, span)], word.object_indices[0]


def _performer_region(performer: ObjectAnnotation, modality: Modality, image_size: tuple[int, int]) -> Region:
    """Where a performer is seen, around all its copies, or when it is heard, from its first note to its last."""
    if modality == "audio":
        return performer.time_span
    width, height = image_size
    x0, y0, x1, y1 = performer.box
    return (x0 / width, y0 / height, x1 / width, y1 / height)


def _average_results(
    query: Modality, gallery: Modality, factor: str, results: Sequence[PointingResult]
) -> LocalisationResult:
    discriminations = [aimed.discrimination for aimed in results if aimed.discrimination is not None]
    hit, hit_chance_level, mass, mass_chance_level = (
        fmean(getattr(aimed, name) for aimed in results)
        for name in ("hit", "hit_chance_level", "mass", "mass_chance_level")
    )
    mean_discrimination = fmean(discriminations) if discriminations else None
    return LocalisationResult(
        query,
        gallery,
        factor,
        len(results),
        hit,
        hit_chance_level,
        mass,
        mass_chance_level,
        mean_discrimination,
        len(discriminations),
    )
