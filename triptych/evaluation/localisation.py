"""Does the heat fall on the named thing? Asked of a made world, where every place and time is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from torch import Tensor

from triptych.contracts import MODALITIES, Features, Modality, Place, Source
from triptych.data.world import Truth, read_truth
from triptych.data.world.truth import Performer
from triptych.errors import MediaError, UsageError
from triptych.heat import Heat, heat_between
from triptych.media import image
from triptych.progress import progress
from triptych.space import Space

ASKED: tuple[tuple[Modality, Modality], ...] = (
    ("text", "image"),
    ("text", "audio"),
    ("audio", "image"),
    ("image", "audio"),
)
HALF = 0.5  # of the smaller of two places must lie in the other, for a part to be on a thing
EVERYTHING = "all"


@dataclass(frozen=True)
class Aim:
    """How one question went, and what a heat that knows nothing would give."""

    hit: float  # is the hottest part on the thing? Several that are equally hot share the answer
    hit_chance: float  # share of the parts that are on it
    mass: float  # share of the positive heat that lies inside it
    mass_chance: float  # the same of even heat: its share of the area or time
    apart: float | None = None  # is it hotter than the other things of its scene? 1, 0 or ½; None where it is alone


@dataclass(frozen=True)
class Localisation:
    """The means over all questions of one kind; `apart` over those of scenes with several things, chance ½."""

    query: Modality
    gallery: Modality
    about: str  # the factor that the words speak of, or all
    queries: int
    hit: float
    hit_chance: float
    mass: float
    mass_chance: float
    apart: float | None
    apart_queries: int


def localise(space: Space, folder: Path, split: str = "test", show: bool = True) -> list[Localisation]:
    """Ask a space about every word, sounding thing and visible thing of a split of a made world.

    text → image: where in the picture is what a word speaks of; text → audio: when; audio → image: where is what is
    heard now; image → audio: when is what is seen here. Words are asked about one by one, things once a scene.
    """
    truths = [truth for truth in read_truth(folder) if truth.split == split]
    if not truths:
        raise UsageError(f"{folder}: no scene of its truth is of split {split!r}")
    if not (folder / "images").is_dir():
        raise UsageError(f"{folder}: has no pictures, only films, whose things move; make a world without --films")
    shape = image.load(Path(_sources(folder, truths[0], "image")[0].content)).size
    items: dict[Modality, dict[Source, Features]] = {
        modality: _embedded(space, folder, truths, modality, show) for modality in space.modalities
    }
    found: list[Localisation] = []
    for query, gallery in ASKED:
        if query not in items or gallery not in items:
            continue
        aims = defaultdict[str, list[Aim]](list)
        for truth in truths:
            for heat in _heats(space, folder, truth, items, query, gallery):
                for about, aimed in _answers(heat, truth, query, gallery, shape):
                    aims[EVERYTHING].append(aimed)
                    aims[about].append(aimed)
        found += [_mean(query, gallery, about, some) for about, some in aims.items() if about]
    return found


def aim(heat: Tensor, places: Sequence[Place], right: Place, others: Sequence[Place] = ()) -> Aim | None:
    """How well the heat (P,) of parts at these places falls on the right one; None where no part has a place."""
    real = [i for i, place in enumerate(places) if place]
    if not real:
        return None
    values = [float(heat[i]) for i in real]
    inside = [overlap(places[i], right) / size(places[i]) for i in real]
    on = [float(_lies_on(places[i], right)) for i in real]
    hottest = max(values)
    positive = [max(0.0, value) for value in values]
    total = sum(positive)
    apart = None
    if others:
        mine = _mean_heat(values, inside)
        theirs = [_mean_heat(values, [overlap(places[i], other) / size(places[i]) for i in real]) for other in others]
        rivals = [value for value in theirs if value is not None]
        if mine is not None and rivals:
            apart = 0.5 if mine == max(rivals) else float(mine > max(rivals))
    return Aim(
        hit=fmean(flag for flag, value in zip(on, values, strict=True) if value == hottest),
        hit_chance=fmean(on),
        mass=sum(p * share for p, share in zip(positive, inside, strict=True)) / total if total else fmean(inside),
        mass_chance=fmean(inside),
        apart=apart,
    )


def overlap(one: Place, other: Place) -> float:
    """The length or area that two places have in common; nothing where they are of different kinds or nowhere."""
    if len(one) != len(other) or not one:
        return 0.0
    half = len(one) // 2
    common = 1.0
    for low, high, other_low, other_high in zip(one[:half], one[half:], other[:half], other[half:], strict=True):
        common *= max(0.0, min(high, other_high) - max(low, other_low))
    return common


def size(place: Place) -> float:
    """The length or area of a place."""
    return overlap(place, place)


def _lies_on(part: Place, thing: Place) -> bool:
    """Whether half of the part lies in the thing, or half of the thing in the part: it may be the smaller."""
    return bool(part) and overlap(part, thing) >= HALF * min(size(part), size(thing)) > 0


def _mean_heat(values: Sequence[float], shares: Sequence[float]) -> float | None:
    total = sum(shares)
    return sum(v * share for v, share in zip(values, shares, strict=True)) / total if total else None


def _sources(folder: Path, truth: Truth, modality: Modality) -> list[Source]:
    """What a scene gives of a modality."""
    if modality == "text":
        return [Source("text", caption.text) for caption in truth.captions]
    name = f"images/{truth.id}.png" if modality == "image" else f"sounds/{truth.id}.wav"
    return [Source(modality, folder / name)]


def _embedded(
    space: Space, folder: Path, truths: Sequence[Truth], modality: Modality, show: bool
) -> dict[Source, Features]:
    """The features of every source of a modality, one item each."""
    sources = list(dict.fromkeys(source for truth in truths for source in _sources(folder, truth, modality)))
    with progress(f"embedding {modality}", len(sources), show) as bar:
        embedded = space.embed(sources, modality, bar=bar)
    for message in embedded.failures.values():
        raise MediaError(message)
    rows = zip(*(tensor.split(1) for tensor in vars(embedded.features).values()), strict=True)
    return dict(zip(sources, (Features(*row) for row in rows), strict=True))


def _heats(
    space: Space,
    folder: Path,
    truth: Truth,
    items: dict[Modality, dict[Source, Features]],
    query: Modality,
    gallery: Modality,
) -> Iterator[Heat]:
    """The heat between everything of two modalities in a scene."""
    first, second = sorted((query, gallery), key=MODALITIES.index)
    for a in _sources(folder, truth, first):
        for b in _sources(folder, truth, second):
            yield heat_between(space, a, items[first][a], b, items[second][b])


def _answers(
    heat: Heat, truth: Truth, query: Modality, gallery: Modality, shape: tuple[int, int]
) -> Iterator[tuple[str, Aim]]:
    """Every question of one heat, by the factor it is about, and how it went."""
    values, own, places = heat.seen_from(query)
    for about, asking, number in _questions(heat, truth, query, gallery, own, shape):
        right, *others = [
            _place(performer, gallery, shape)
            for performer in (truth.performers[number], *truth.performers[:number], *truth.performers[number + 1 :])
        ]
        aimed = aim(values[asking].mean(dim=0), places, right, others) if asking else None
        if aimed:
            yield about, aimed


def _questions(
    heat: Heat, truth: Truth, query: Modality, gallery: Modality, places: Sequence[Place], shape: tuple[int, int]
) -> Iterator[tuple[str, list[int], int]]:
    """What is asked about, the parts that ask, and the number of the performer they mean."""
    if query != "text":
        for number, performer in enumerate(truth.performers):
            thing = _place(performer, query, shape)
            yield "", [i for i, place in enumerate(places) if _lies_on(place, thing)], number
        return
    (caption,) = (caption for caption in truth.captions if caption.text == heat.b.content)
    for word in caption.words:
        if word.factor and (word.boxes if gallery == "image" else word.times):
            span = (word.start, word.end)
            yield word.factor, [i for i, place in enumerate(places) if overlap(place, span)], word.actors[0]


def _place(performer: Performer, modality: Modality, shape: tuple[int, int]) -> Place:
    """Where a performer is seen, around all its copies, or when it is heard, from its first note to its last."""
    if modality == "audio":
        return performer.time
    width, height = shape
    x0, y0, x1, y1 = performer.box
    return (x0 / width, y0 / height, x1 / width, y1 / height)


def _mean(query: Modality, gallery: Modality, about: str, aims: Sequence[Aim]) -> Localisation:
    apart = [aimed.apart for aimed in aims if aimed.apart is not None]
    hit, hit_chance, mass, mass_chance = (
        fmean(getattr(aimed, name) for aimed in aims) for name in ("hit", "hit_chance", "mass", "mass_chance")
    )
    mean_apart = fmean(apart) if apart else None
    return Localisation(query, gallery, about, len(aims), hit, hit_chance, mass, mass_chance, mean_apart, len(apart))
