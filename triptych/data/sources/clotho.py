"""Clotho: clips from Freesound with five captions each."""

from __future__ import annotations

from collections import Counter

from triptych.data import manifest
from triptych.data.sources.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.sources.local_copy import LocalCopy


def read(copy: LocalCopy) -> ManifestDraft:
    """The captions files as they were published, all that are there: development is train, evaluation is test."""
    parts = [part for part in manifest.CLOTHO_SPLITS if copy.find_file(f"clotho_captions_{part}.csv")]
    if not parts:
        raise copy.missing_error("clotho_captions_development.csv, …_validation.csv or …_evaluation.csv")
    items: list[DraftItem] = []
    skip_counts: Counter[str] = Counter()
    for part in parts:
        # The manifest's own reader knows the layout of one such file already.
        table = manifest.read(copy.require_file(f"clotho_captions_{part}.csv"))
        skip_counts.update(f"rows with an error: {problem.category}" for problem in table.errors)
        items += [
            DraftItem(
                f"{part}/{row.audio.stem}",
                files={"audio": row.audio},
                texts=clean_captions(*row.texts),
                split=row.split,
            )
            for row in table.rows
            if row.audio
        ]
    missing_parts = [part for part in manifest.CLOTHO_SPLITS if part not in parts]
    notes = [f"no captions file for: {', '.join(missing_parts)}"] if missing_parts else []
    return ManifestDraft(items, skip_counts, notes)


SOURCE = Dataset(
    title="Clotho, sounds with five captions",
    modalities="audio–text",
    expected_files=(
        "clotho_captions_development.csv, …_validation.csv, …_evaluation.csv",
        "development/*.wav and so on",
    ),
    licence="captions: Tampere University, non-commercial with attribution; each clip its own Creative Commons licence",
    read=read,
)
