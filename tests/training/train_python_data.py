"""A program that trains on Python data; started as a process from test_loop_data.py."""

import sys
from pathlib import Path

import soundfile
import torch
from PIL import Image

import triptych
from triptych.data import manifest


class StopAfterFirstEpoch(triptych.Callback):
    """Stops training after the first epoch."""

    def on_epoch(self, progress):
        return True


def make_python_rows(path):
    """Return the rows of a manifest with images and audio in memory."""
    rows = []
    for row in manifest.read(path).rows:
        samples, rate = soundfile.read(row.audio or "", dtype="float32")
        with Image.open(row.image or "") as image:
            pixels = image.copy()
        cells = {"image": pixels, "audio": {"array": samples, "sampling_rate": rate}, "text": list(row.texts)}
        rows.append({**cells, "split": row.split, "label": row.label})
    return rows


def train_python_rows(recipe, path, folder, **settings):
    """Train a recipe on the rows of a manifest as Python data that can be iterated once."""
    return triptych.train(recipe, folder, data=(row for row in make_python_rows(path)), **settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    recipe, path, folder, *options = sys.argv[1:]
    callbacks = [StopAfterFirstEpoch()] if "stop" in options else []
    train_python_rows(Path(recipe), path, folder, callbacks=callbacks)
