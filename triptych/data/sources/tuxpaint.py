"""Tux Paint's stamps: pictures with captions in many languages, sound effects, and voices that read the captions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

from triptych.data.sources.archive import unpack
from triptych.data.sources.draft import Dataset, Draft, Item, captions, choose, link, split_of
from triptych.data.sources.local import Copy, read_lines
from triptych.errors import UsageError

INSIDE = PurePosixPath("usr/share/tuxpaint/stamps")
SOUNDS = (".ogg", ".wav")
KINDS = ("both", "effects", "speech")


def read(copy: Copy, *, language: str = "en", sounds: str = "both") -> Draft:
    """A row for each sound of a stamp: its effect with the captions, and each voice with the caption it reads.

    A stamp without either is one row of picture and captions. Stamps with the same caption share a group; the split is
    a hash of the English caption. language: one, several with commas, or `all`. sounds: effects, speech or both.
    """
    choose("sounds", sounds, KINDS)
    root = _root(copy)
    stamps = {str(path.relative_to(root).with_suffix("").as_posix()): path for path in sorted(root.rglob("*.txt"))}
    if not stamps:
        raise copy.missing("stamps: pictures with a .txt of the same name")
    told = {name: _captions(path) for name, path in stamps.items()}
    languages = _languages(language, told)
    groups = link(
        {name: [(each, texts[each].casefold()) for each in languages if each in texts] for name, texts in told.items()}
    )
    in_english = link({name: [texts["en"].casefold()] if "en" in texts else [] for name, texts in told.items()})
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for name, path in stamps.items():
        picture = path.with_suffix(".png")
        if not picture.exists():
            left_out["pictures that are only SVG, which we cannot decode"] += path.with_suffix(".svg").exists()
        stamp = Item(
            name,
            files={"image": picture} if picture.exists() else {},
            group=groups[name],
            split=split_of("tuxpaint", in_english[name]),
            label=name.partition("/")[0],
        )
        items += _rows(
            stamp, path.with_suffix(""), {each: told[name][each] for each in languages if each in told[name]}, sounds
        )
    return Draft(items, left_out)


def _root(copy: Copy) -> Path:
    """The folder of the stamps: the one given, the one in an unpacked package, or a package that we unpack."""
    if copy.path.is_file() and copy.path.suffix == ".deb":
        unpack(copy.path, copy.room, _is_stamp)
        return copy.room / INSIDE
    if not copy.path.is_dir():
        raise copy.missing("the folder of Debian's package tuxpaint-stamps-default (install it), or its .deb file")
    within = (copy.path / INSIDE, copy.path / "tuxpaint/stamps", copy.path / "stamps")
    return next((folder for folder in within if folder.is_dir()), copy.path)


def _is_stamp(name: PurePosixPath) -> bool:
    return name.is_relative_to(INSIDE) and name.suffix in {".txt", ".png", ".svg", *SOUNDS}


def _captions(path: Path) -> dict[str, str]:
    """Language -> caption: the first line is English, the others name theirs: fr.utf8=Un chien."""
    texts: dict[str, str] = {}
    for number, line in enumerate(read_lines(path)):
        name, equals, text = line.partition(".utf8=")
        if number == 0 and not equals:
            name, text = "en", line
        for clean in captions(text):
            texts.setdefault(name, clean)
    return texts


def _languages(wanted: str, told: dict[str, dict[str, str]]) -> list[str]:
    known = sorted({name for texts in told.values() for name in texts})
    if wanted == "all":
        return known
    languages = [name.strip() for name in wanted.split(",")]
    strange = [name for name in languages if name not in known]
    if strange:
        raise UsageError(f"--language {strange[0]} is unknown; known: {', '.join(known)}, all")
    return languages


def _rows(stamp: Item, stem: Path, texts: dict[str, str], sounds: str) -> list[Item]:
    rows: list[Item] = []
    effect = _sound(stem, *(f"_{name}" for name in texts), "") if sounds != "speech" else None
    if effect:
        rows.append(
            replace(
                stamp, id=f"{stamp.id}:effect", files={**stamp.files, "audio": effect}, texts=captions(*texts.values())
            )
        )
    for name, text in texts.items() if sounds != "effects" else ():
        voice = _sound(stem, f"_desc_{name}", *(["_desc"] if name == "en" else []))
        if voice:
            rows.append(replace(stamp, id=f"{stamp.id}:{name}", files={**stamp.files, "audio": voice}, texts=(text,)))
    return rows or [replace(stamp, texts=captions(*texts.values()))]


def _sound(stem: Path, *additions: str) -> Path | None:
    """The first sound there is; some effects (numbers, letters) are spoken, and have one for each language."""
    names = (stem.with_name(stem.name + addition + ending) for addition in additions for ending in SOUNDS)
    return next((path for path in names if path.is_file()), None)


SOURCE = Dataset(
    title="Tux Paint stamps, pictures with captions, effects and voices",
    pairs="image–audio–text",
    expects=(
        "the folder of Debian's package tuxpaint-stamps-default (found by itself where it is installed),",
        "or its .deb file (`apt-get download tuxpaint-stamps-default`)",
    ),
    licence="GPL-2+",
    read=read,
    home=Path("/usr/share/tuxpaint/stamps"),
)
