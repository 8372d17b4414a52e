"""Convert local copies of datasets to manifests. To add a source: one file here, and one entry in SOURCES."""

from triptych.data.sources import (
    audiocaps,
    clotho,
    coco,
    esc50,
    flickr8k,
    flickr_audio,
    folder,
    gcompris,
    hf,
    places_audio,
    tuxpaint,
    wavcaps,
    webdataset,
)
from triptych.data.sources.draft import Dataset

SOURCES: dict[str, Dataset] = {
    "esc50": esc50.SOURCE,
    "clotho": clotho.SOURCE,
    "audiocaps": audiocaps.SOURCE,
    "wavcaps": wavcaps.SOURCE,
    "flickr8k": flickr8k.SOURCE,
    "coco": coco.SOURCE,
    "places_audio": places_audio.SOURCE,
    "flickr_audio": flickr_audio.SOURCE,
    "tuxpaint": tuxpaint.SOURCE,
    "gcompris": gcompris.SOURCE,
    "folder": folder.SOURCE,
    "webdataset": webdataset.SOURCE,
    "hf": hf.SOURCE,
}
