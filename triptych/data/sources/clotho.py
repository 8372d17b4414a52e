"""Clotho: clips from Freesound with five captions each."""

from __future__ import annotations

from collections import Counter

from triptych.data import manifest
from triptych.data.sources.draft import Dataset, Draft, Item, captions
from triptych.data.sources.local import Copy


def read(copy: Copy) -> Draft:
    """The captions files as they were published, all that are there: development is train, evaluation is test."""
    parts = [part for part in manifest.CLOTHO_SPLITS if copy.seek(f"clotho_captions_{part}.csv")]
    if not parts:
        raise copy.missing("clotho_captions_development.csv, …_validation.csv or …_evaluation.csv")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for part in parts:
        # The manifest's own reader knows the layout of one such file already.
        table = manifest.read(copy.file(f"clotho_captions_{part}.csv"))
        left_out.update(f"rows with an error: {problem.kind}" for problem in table.errors)
        items += [
            Item(f"{part}/{row.audio.stem}", files={"audio": row.audio}, texts=captions(*row.texts), split=row.split)
            for row in table.rows
            if row.audio
        ]
    absent = [part for part in manifest.CLOTHO_SPLITS if part not in parts]
    notes = [f"no captions file for: {', '.join(absent)}"] if absent else []
    return Draft(items, left_out, notes)


SOURCE = Dataset(
    title="Clotho, sounds with five captions",
    pairs="audio–text",
    expects=("clotho_captions_development.csv, …_validation.csv, …_evaluation.csv", "development/*.wav and so on"),
    licence="captions: Tampere University, non-commercial with attribution; each clip its own Creative Commons licence",
    read=read,
)
