"""GCompris: pictures of things, the word for each in English and French, and a human voice that says it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from triptych.data.columns import FileKind
from triptych.data.sources.draft import Dataset, Draft, Item, captions, choose, link, split_of
from triptych.data.sources.local import Copy, read_csv

LANGUAGES = {"en": ("text_en", "speech_en_US"), "fr": ("text_fr", "speech_fr")}
COLUMNS = ("id", "image", "lesson", *(column for columns in LANGUAGES.values() for column in columns))


def read(copy: Copy, *, language: str = "en") -> Draft:
    """A row is a picture, a word and a voice in one language; with `both`, the two rows of a picture share a group.

    Things with the same word (an orange and the colour orange) share a group: who hears only the word cannot tell them
    apart. The split is a hash of the thing and of all that share a word with it in any language, so that the splits of
    all languages agree.
    """
    choose("language", language, (*LANGUAGES, "both"))
    chosen = LANGUAGES if language == "both" else {language: LANGUAGES[language]}
    rows = read_csv(copy.file("meta.csv"), COLUMNS)
    groups = link({row["id"]: _words(row, chosen) for row in rows})
    everywhere = link({row["id"]: _words(row, LANGUAGES) for row in rows})
    pictures = copy.base((row["image"] for row in rows if row["image"]), "pictures")
    voices = copy.base((row["speech_en_US"] for row in rows if row["speech_en_US"]), "voices")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    for row in rows:
        for name, (text, speech) in chosen.items():
            if not row[text] and not row[speech]:
                left_out[f"things without word and voice in {name}"] += 1
                continue
            silent[name] += not row[speech]
            items.append(
                Item(
                    row["id"] if language != "both" else f"{row['id']}:{name}",
                    files=_files(audio=(voices, row[speech]), image=(pictures, row["image"])),
                    texts=captions(row[text]),
                    group=groups[row["id"]],
                    split=split_of("gcompris", everywhere[row["id"]]),
                    label=row["lesson"] or None,
                )
            )
    notes = [
        f"{count} things have no voice in {name}: picture and word only" for name, count in silent.items() if count
    ]
    return Draft(items, left_out, notes)


def _files(audio: tuple[Path, str], image: tuple[Path, str]) -> dict[FileKind, Path]:
    named: dict[FileKind, tuple[Path, str]] = {"audio": audio, "image": image}
    return {kind: folder / name for kind, (folder, name) in named.items() if name}


def _words(row: dict[str, str], languages: dict[str, tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, word.casefold()) for name, (text, _) in languages.items() for word in captions(row[text])]


SOURCE = Dataset(
    title="GCompris, pictures of things with words and voices",
    pairs="image–speech–text",
    expects=(
        "meta.csv: id, image, chapter, lesson, text_en, text_fr, speech_en_US, speech_fr",
        "images/*.jpg and audio/*.ogg",
    ),
    licence="pictures CC BY-SA 4.0; voices GPL-3+ or CC BY-SA 4.0",
    read=read,
)
