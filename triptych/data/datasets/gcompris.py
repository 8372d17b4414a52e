"""GCompris: images of objects, with the English and French word for each object as text and recorded speech."""

from collections import Counter
from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, check_choice, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_csv
from triptych.data.datasets.splits import find_connected_groups, split_by_hash
from triptych.data.row_parser import MediaType

LANGUAGES = {"en": ("text_en", "speech_en_US"), "fr": ("text_fr", "speech_fr")}
COLUMNS = ("id", "image", "lesson", *(column for columns in LANGUAGES.values() for column in columns))


def read(copy: LocalCopy, *, language: str = "en") -> ManifestDraft:
    """Read one row for each object and language: image, word and speech. With `both`, the two rows share a group.

    Objects with the same word (the fruit orange and the colour orange) share a group: text and speech cannot
    distinguish them. Objects connected by a word in any language are split together by a hash, so that the splits are
    the same for all values of `language`.
    """
    check_choice("language", language, (*LANGUAGES, "both"))
    languages = LANGUAGES if language == "both" else {language: LANGUAGES[language]}
    rows = read_csv(copy.require_file("meta.csv"), COLUMNS)
    groups = find_connected_groups({row["id"]: _list_words(row, languages) for row in rows})
    all_language_groups = find_connected_groups({row["id"]: _list_words(row, LANGUAGES) for row in rows})
    image_folder = copy.find_base_folder((row["image"] for row in rows if row["image"]), "images")
    speech_folder = copy.find_base_folder((row["speech_en_US"] for row in rows if row["speech_en_US"]), "speech files")
    draft, num_without_speech = ManifestDraft(), Counter[str]()
    for row in rows:
        for name, (text, speech) in languages.items():
            if not row[text] and not row[speech]:
                draft.skip_counts[f"objects without word and speech in {name}"] += 1
                continue
            num_without_speech[name] += not row[speech]
            files: dict[MediaType, Path] = {"audio": speech_folder / row[speech]} if row[speech] else {}
            files |= {"image": image_folder / row["image"]} if row["image"] else {}
            draft.items.append(
                DraftItem(
                    row["id"] if language != "both" else f"{row['id']}:{name}",
                    files,
                    texts=clean_captions(row[text]),
                    group=groups[row["id"]],
                    split=split_by_hash("gcompris", all_language_groups[row["id"]]),
                    label=row["lesson"] or None,
                )
            )
    for name, count in (+num_without_speech).items():
        draft.notes.append(f"{count} objects have no speech in {name}: image and word only")
    return draft


def _list_words(row: dict[str, str], languages: dict[str, tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, word.casefold()) for name, (text, _) in languages.items() for word in clean_captions(row[text])]


DATASET = Dataset(
    title="GCompris: images of objects with words and speech",
    modalities="image–speech–text",
    expected_files=(
        "meta.csv: id, image, chapter, lesson, text_en, text_fr, speech_en_US, speech_fr",
        "images/*.jpg and audio/*.ogg",
    ),
    licence="images CC BY-SA 4.0; speech GPL-3+ or CC BY-SA 4.0",
    read=read,
)
