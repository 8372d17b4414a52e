"""Convert local copies of datasets to manifests. To add a dataset, write one module here and add it to DATASETS."""

from triptych.data.datasets import (
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
from triptych.data.datasets.draft import Dataset
from triptych.plugins import Registry

DATASETS: Registry[Dataset] = Registry("dataset", Dataset)
DATASETS |= {
    "esc50": esc50.DATASET,
    "clotho": clotho.DATASET,
    "audiocaps": audiocaps.DATASET,
    "wavcaps": wavcaps.DATASET,
    "flickr8k": flickr8k.DATASET,
    "coco": coco.DATASET,
    "places_audio": places_audio.DATASET,
    "flickr_audio": flickr_audio.DATASET,
    "tuxpaint": tuxpaint.DATASET,
    "gcompris": gcompris.DATASET,
    "folder": folder.DATASET,
    "webdataset": webdataset.DATASET,
    "hf": hf.DATASET,
}
