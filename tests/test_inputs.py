"""Conversion of Python objects to sources."""

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triptych import inputs
from triptych.errors import InputError
from triptych.inputs import is_one_input, to_source
from triptych.interfaces import Pixels, Source, Waveform


@pytest.mark.parametrize(
    ("value", "modality", "expected"),
    [
        ("a dog barks", None, Source("text", "a dog barks")),
        ("bark.wav", None, Source("audio", Path("bark.wav"))),
        ("DOG.JPG", None, Source("image", Path("DOG.JPG"))),
        ("notes.txt", None, Source("text", "notes.txt")),
        (Path("notes.txt"), None, Source("text", Path("notes.txt"))),
        ("bark.wav", "text", Source("text", "bark.wav")),
        ({"text": "bark.wav"}, None, Source("text", "bark.wav")),
        ({"audio": "recording"}, None, Source("audio", Path("recording"))),
        (Path("clip.mp4"), "image", Source("image", Path("clip.mp4"))),
        (Source("text", "rain"), None, Source("text", "rain")),
    ],
)
def test_texts_and_paths(value, modality, expected):
    assert to_source(value, modality) == expected


def test_doctests():
    assert doctest.testmod(inputs).failed == 0


@pytest.mark.parametrize(
    "value",
    [
        (np.array([0.5, -0.5], np.float32), 8000),
        (np.array([16384, -16384], np.int16), 8000),
        (torch.tensor([[0.5, -0.5], [0.5, -0.5]], dtype=torch.float64), np.int64(8000)),
        (np.array([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]), 8000),  # (time, channels)
        {"array": [0.5, -0.5], "sampling_rate": 8000, "path": None},
    ],
)
def test_audio_in_memory(value):
    content = to_source(value).content
    assert isinstance(content, Waveform)
    assert content.samples.dtype == np.float32
    assert content.rate == 8000
    np.testing.assert_allclose(content.samples[:2], [0.5, -0.5])


@pytest.mark.parametrize(
    "value",
    [
        np.full((2, 3, 3), 51, np.uint8),
        np.full((3, 2, 3), 0.2),  # both ends could be channels: the last axis wins
        torch.full((3, 5, 7), 0.2),
        np.full((2, 3), 51, np.uint8),
        np.full((2, 3, 1), 51, np.uint8),
        Image.new("RGB", (3, 2), (51, 51, 51)),
    ],
)
def test_images_in_memory(value):
    content = to_source(value).content
    assert isinstance(content, Pixels)
    assert np.unique(np.asarray(content.image)).tolist() == [51]


@pytest.mark.parametrize(
    ("value", "modality", "message"),
    [
        (3, None, "int is not an input"),
        (Path("clip.mp4"), None, "a video is both image and audio; give modality"),
        (Path("table.xyz"), None, "the extension is unknown"),
        ("https://example.org/a.wav", None, "URLs are not downloaded"),
        (np.zeros(8), None, "needs its sampling rate"),
        (np.zeros(8), "text", "an array is image, but modality is 'text'"),
        (np.zeros((2, 2, 5), np.uint8), None, r"shape \(2, 2, 5\)"),
        (np.full((2, 2), 300), None, "dtype int64; need uint8"),
        (np.full((2, 2), 7.0), None, "values from 7 to 7; need 0 to 1"),
        ((np.zeros(4), 0), None, "sampling rate 0"),
        ((np.zeros(4), "8k"), None, "sampling rate '8k'"),
        ((np.zeros(0), 8000), None, "not empty"),
        ((np.array([np.nan]), 8000), None, "NaN or infinity"),
        ((np.array(["a"]), 8000), None, "need floating point or signed integers"),
        (([[0.0], [0.0, 1.0]], 8000), None, "not an array"),
        ((1, 2, 3), None, "a tuple of 3 values"),
        ({"video": "a.mp4"}, None, r"keys \['video'\]"),
        (Image.new("L", (2, 2)), "audio", "a PIL image is image, but modality is 'audio'"),
        (Source("text", "a"), "image", "the source is text, but modality is 'image'"),
        ("a", "sound", "unknown"),
    ],
)
def test_invalid_inputs_raise(value, modality, message):
    with pytest.raises(InputError, match=message):
        to_source(value, modality)


def test_one_input_and_lists_are_distinguished():
    for value in ("a", Path("a.wav"), np.zeros(3), (np.zeros(3), 8000), {"text": "a"}, Source("text", "a")):
        assert is_one_input(value)
    for value in (["a"], ("a", "b"), ("a", 3), (value for value in "ab"), []):
        assert not is_one_input(value)
