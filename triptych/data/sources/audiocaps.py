"""AudioCaps: ten-second clips of AudioSet with written captions; one in train, five in val and test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, captions, kind_of
from triptych.data.sources.local import Copy, read_csv

COLUMNS = ("youtube_id", "start_time", "caption")


def read(copy: Copy) -> Draft:
    """Captions of one clip become one row; clips nobody has any more are left out and counted."""
    tables = {part: found for part in ("train", "val", "test") if (found := copy.seek(f"{part}.csv"))}
    if not tables:
        raise copy.missing("train.csv, val.csv or test.csv")
    places = _places(copy)
    if not places:
        raise copy.missing("sound files named after youtube_id, such as audio/Y---1_cCGK4M.wav,")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for part, table in tables.items():
        clips: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in read_csv(table, COLUMNS):
            clips.setdefault((row["youtube_id"], row["start_time"]), []).append(row)
        for (video, start), rows in clips.items():
            path = _find(places, part, video, start, rows)
            kind = kind_of(path) if path else None
            if path is None or kind is None or kind == "image":
                left_out["clips without a sound file"] += 1
                continue
            texts = captions(*(row["caption"] for row in rows))
            items.append(Item(f"{part}/{video}_{start}", texts=texts, split=SPLITS[part], files={kind: path}))
    return Draft(items, left_out)


def _places(copy: Copy) -> dict[str, list[Path]]:
    """Name without ending -> the files that have it; the same clip may lie in several splits' folders."""
    places: dict[str, list[Path]] = {}
    for path in copy.all("*"):
        if kind_of(path) in {"audio", "video"}:
            places.setdefault(path.stem, []).append(path)
    return places


def _find(places: dict[str, list[Path]], part: str, video: str, start: str, rows: list[dict[str, str]]) -> Path | None:
    """The file of a clip under any of the names that downloaders give it; one in the split's own folder first."""
    whole = start.removesuffix(".0")
    end = f"{int(whole) + 10}" if whole.isdigit() else ""
    names = [f"{video}_{whole}_{end}", f"{video}_{whole}", f"{video}_{start}", video, f"Y{video}"]
    names += [f"{video}_{int(whole) * 1000}_{int(whole) * 1000 + 10000}"] if whole.isdigit() else []
    names += [row["audiocap_id"] for row in rows if row.get("audiocap_id")]
    for name in names:
        if name in places:
            return min(places[name], key=lambda path: (part not in path.parts, path))
    return None


SOURCE = Dataset(
    title="AudioCaps, clips of AudioSet with captions",
    pairs="audio–text",
    expects=(
        "train.csv, val.csv, test.csv: audiocap_id, youtube_id, start_time, caption",
        "the clips at any depth, named YOUTUBE_ID, YYOUTUBE_ID, YOUTUBE_ID_START or AUDIOCAP_ID",
    ),
    licence="captions MIT; the sound belongs to the authors of the videos",
    read=read,
)
