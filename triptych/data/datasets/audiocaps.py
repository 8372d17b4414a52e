"""AudioCaps: ten-second AudioSet clips. A clip has one caption in train, and five captions in val and test."""

from pathlib import Path

from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy, read_csv
from triptych.data.datasets.splits import SPLIT_ALIASES
from triptych.data.row_parser import media_type_from_suffix

COLUMNS = ("youtube_id", "start_time", "caption")


def read(copy: LocalCopy) -> ManifestDraft:
    """Read one row for each clip, with all its captions. Clips without a file are skipped."""
    tables = {part: table_path for part in ("train", "val", "test") if (table_path := copy.find_file(f"{part}.csv"))}
    if not tables:
        raise copy.missing_error("train.csv, val.csv or test.csv")
    clip_files = copy.index_by_stem("audio", "video")
    if not clip_files:
        raise copy.missing_error("audio files named after youtube_id, such as audio/Y---1_cCGK4M.wav,")
    draft = ManifestDraft()
    for part, table in tables.items():
        clips: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in read_csv(table, COLUMNS):
            clips.setdefault((row["youtube_id"], row["start_time"]), []).append(row)
        for (video, start), rows in clips.items():
            path = _find_clip(clip_files, part, video, start, rows)
            media_type = media_type_from_suffix(path) if path else None
            if path is None or media_type is None or media_type == "image":
                draft.skip_counts["clips without an audio file"] += 1
                continue
            name, texts = f"{part}/{video}_{start}", clean_captions(*(row["caption"] for row in rows))
            draft.items.append(DraftItem(name, {media_type: path}, texts, split=SPLIT_ALIASES[part]))
    return draft


def _find_clip(
    clip_files: dict[str, list[Path]], part: str, video: str, start: str, rows: list[dict[str, str]]
) -> Path | None:
    """Find a clip under the file names that download tools use; prefer a file in the folder of the split."""
    seconds = start.removesuffix(".0")
    end = f"{int(seconds) + 10}" if seconds.isdigit() else ""
    names = [f"{video}_{seconds}_{end}", f"{video}_{seconds}", f"{video}_{start}", video, f"Y{video}"]
    names += [f"{video}_{int(seconds) * 1000}_{int(end) * 1000}"] if seconds.isdigit() else []
    names += [row["audiocap_id"] for row in rows if row.get("audiocap_id")]
    for name in names:
        if name in clip_files:
            return min(clip_files[name], key=lambda path: (part not in path.parts, path))
    return None


DATASET = Dataset(
    title="AudioCaps: AudioSet clips with captions",
    modalities="audio–text",
    expected_files=(
        "train.csv, val.csv, test.csv: audiocap_id, youtube_id, start_time, caption",
        "clips at any depth, named YOUTUBE_ID, YYOUTUBE_ID, YOUTUBE_ID_START or AUDIOCAP_ID",
    ),
    licence="captions MIT; the audio belongs to the authors of the videos",
    read=read,
)
