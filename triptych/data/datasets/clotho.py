"""Clotho: Freesound recordings with five captions each."""

from triptych.data import manifest
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy


def read(copy: LocalCopy) -> ManifestDraft:
    """Read all caption files that exist. Development is the train split, and evaluation is the test split."""
    parts = [part for part in manifest.CLOTHO_SPLITS if copy.find_file(f"clotho_captions_{part}.csv")]
    if not parts:
        raise copy.missing_error("clotho_captions_development.csv, …_validation.csv or …_evaluation.csv")
    draft = ManifestDraft()
    for part in parts:
        # manifest.read supports the layout of a Clotho caption file.
        table = manifest.read(copy.require_file(f"clotho_captions_{part}.csv"))
        draft.skip_counts.update(f"rows with an error: {problem.category}" for problem in table.errors)
        for row in table.rows:
            if row.audio:
                name, texts = f"{part}/{row.audio.stem}", clean_captions(*row.texts)
                draft.items.append(DraftItem(name, {"audio": row.audio}, texts, split=row.split))
    missing_parts = [part for part in manifest.CLOTHO_SPLITS if part not in parts]
    if missing_parts:
        draft.notes.append(f"no caption file for: {', '.join(missing_parts)}")
    return draft


DATASET = Dataset(
    title="Clotho: recordings with five captions",
    modalities="audio–text",
    expected_files=(
        "clotho_captions_development.csv, …_validation.csv, …_evaluation.csv",
        "development/*.wav and so on",
    ),
    licence="captions: Tampere University, non-commercial with attribution; each clip its own Creative Commons licence",
    read=read,
)
