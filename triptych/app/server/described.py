"""Items and hits as they go over the wire. Where files lie is told from what was indexed, not from the disk's root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from triptych.app.server.shapes import HitAnswer, ItemAnswer, Kind, Overview
from triptych.contracts import MODALITIES, Hit, Modality
from triptych.media import VIDEO_ENDINGS
from triptych.search.collection import Collection
from triptych.search.entry import Entry
from triptych.search.query import quoted
from triptych.search.store import Version

SAMPLE = 2000  # items of each modality that are looked at for columns, folders and examples
FEW = 60  # values of a column that can be chosen from a list
EXAMPLES = 4


def item_answer(entry: Entry) -> ItemAnswer:
    """An item of the collection."""
    source, item = entry.item.source, entry.item
    return ItemAnswer(
        id=entry.id,
        captions=list(item.captions),
        start=source.start,
        end=source.end,
        duration=item.duration,
        columns={name: list(values) for name, values in item.columns.items()},
        **_place(source.modality, source.content, entry.excerpt, _roots(entry.origins)),
    )


def hit_answers(hits: Sequence[Hit], roots: Sequence[Path]) -> list[HitAnswer]:
    """What was found."""
    return [
        HitAnswer(
            id=hit.id,
            captions=list(hit.captions),
            start=hit.start,
            end=hit.end,
            duration=hit.duration,
            columns={name: list(values) for name, values in hit.columns.items()},
            score=hit.score,
            relevance=hit.relevance,
            parts=list(hit.parts),
            copies=list(hit.copies),
            **_place(hit.modality, Path(hit.item) if _is_file(hit, roots) else hit.item, hit.excerpt, roots),
        )
        for hit in hits
    ]


def _is_file(hit: Hit, roots: Sequence[Path]) -> bool:
    """Whether a hit is a file; a text may be either, and a file lies below something that was indexed."""
    if hit.modality != "text" or hit.excerpt is not None:
        return True
    return hit.item.startswith("/") and any(Path(hit.item).is_relative_to(root) for root in roots)


def _place(modality: Modality, content: str | Path, excerpt: str | None, roots: Sequence[Path]) -> dict[str, Any]:
    path = content if isinstance(content, Path) else None
    words = None
    if modality == "text":
        # Of a file what was kept at indexing: the path may lead anywhere by now.
        words = str(content) if path is None else excerpt or path.name
    return {
        "modality": modality,
        "kind": kind_of(modality, path),
        "name": path.name if path else "",
        "folder": _folder(path, roots) if path else "",
        "text": words,
    }


def kind_of(modality: Modality, path: Path | None) -> Kind:
    """What a person would call it."""
    if path is not None and path.suffix.lower() in VIDEO_ENDINGS:
        return "film"
    kinds: dict[Modality, Kind] = {"image": "picture", "audio": "sound", "text": "text"}
    return kinds[modality]


def _folder(path: Path, roots: Sequence[Path]) -> str:
    for root in roots:
        if path.is_relative_to(root):
            inside = path.relative_to(root).parent
            return root.name if inside == Path() else f"{root.name}/{inside}"
    return path.parent.name


def _roots(origins: Iterable[str]) -> list[Path]:
    """The folders that were indexed, the deepest first: the origins themselves, or where a manifest lies."""
    paths = map(Path, origins)
    found = {path if not path.suffix or path.is_dir() else path.parent for path in paths}
    return sorted(found, key=lambda root: -len(root.parts))


class Roots:
    """The folders that were indexed, looked up once for each version of the collection."""

    def __init__(self) -> None:
        self._known: tuple[Version | None, list[Path]] = None, []

    def of(self, collection: Collection) -> list[Path]:
        """All of them, the deepest first."""
        if collection.store is None:
            return []
        version = collection.store.version
        if self._known[0] != version:
            names = collection.store.rows(["origins"])["origins"].combine_chunks().flatten().unique().to_pylist()
            self._known = version, _roots(names)
        return self._known[1]


def overview(collection: Collection) -> Overview:
    """What the collection holds, by a look at a sample of it; limits, report and review are for the route to add."""
    counts: dict[Modality, int] = {}
    columns: dict[str, Counter[str]] = {}
    folders: Counter[str] = Counter()
    examples: list[str] = []
    for modality in MODALITIES:
        if modality not in collection.space.modalities or collection.store is None:
            continue
        counts[modality] = collection.store.count(f"modality = {quoted(modality)}")
        entries, _ = collection.sample(modality, SAMPLE)
        for entry in entries:
            for name, values in entry.item.columns.items():
                columns.setdefault(name, Counter()).update(values)
            shown = item_answer(entry)
            if shown.folder:
                folders[shown.folder] += 1
            examples += [words for words in (*entry.item.captions[:1], shown.text) if words and 12 < len(words) < 90]
    step = max(1, len(examples) // EXAMPLES)
    return Overview(
        name=Path(collection.place).resolve().name if "://" not in collection.place else collection.place,
        items=sum(counts.values()),
        modalities={modality: count for modality, count in counts.items() if count},
        folders=[name for name, _ in folders.most_common(FEW)],
        columns={name: sorted(values) for name, values in columns.items() if 1 < len(values) <= FEW},
        examples=list(dict.fromkeys(examples[step // 2 :: step]))[:EXAMPLES],
        similarity=collection.space.recipe.space.similarity.name,
        width=collection.space.recipe.space.width,
        fingerprint=collection.fingerprint,
        limits={},
        report=False,
        review=False,
    )
