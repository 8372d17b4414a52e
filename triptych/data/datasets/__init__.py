"""Convert local copies of datasets to manifests. To add a dataset, write one module here and add it to PUBLISHED."""

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

PUBLISHED = (esc50, clotho, audiocaps, wavcaps, flickr8k, coco, places_audio, flickr_audio, tuxpaint, gcompris)
FORMATS = (folder, webdataset, hf)
DATASETS: Registry[Dataset] = Registry("dataset", Dataset)
DATASETS |= {m.__name__.rpartition(".")[2]: m.DATASET for m in (*PUBLISHED, *FORMATS)}
