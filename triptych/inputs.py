"""Convert Python objects to sources: texts, paths, PIL images, NumPy arrays, tensors and (samples, rate) pairs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from PIL import Image

from triptych.errors import InputError, describe_unknown
from triptych.interfaces import MODALITIES, Modality, Pixels, Source, Waveform
from triptych.media import AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VIDEO_EXTENSIONS, modalities_of

# A text or path, a PIL image, an array or tensor, (samples, rate), {"array": …, "sampling_rate": …}, or an explicit
# wrapper such as {"text": "rain.wav"}.
Input: TypeAlias = (
    str | PathLike[str] | Image.Image | np.ndarray | torch.Tensor | tuple[Any, int] | Mapping[str, Any] | Source
)
MEDIA_EXTENSIONS = AUDIO_EXTENSIONS | IMAGE_EXTENSIONS | VIDEO_EXTENSIONS
WRAPPERS = 'wrap it as {"text": …}, {"image": …} or {"audio": …}'


def to_source(value: Input, modality: Modality | None = None) -> Source:
    """Convert one input to a source. The modality follows from the type of the input, or is given.

    Args:
        value: A text; a path (a `pathlib.Path`, or a string with the extension of an audio, image or video file); a PIL
            image; an image array of shape (height, width), (height, width, channels) or (channels, height, width), of
            dtype uint8, or of a floating dtype with values from 0 to 1; audio as a tuple (samples, rate) or as a
            dictionary with the keys "array" and "sampling_rate"; a dictionary with one of the keys "text", "image" and
            "audio", which sets the modality of its value; or a source.
        modality: "text", "image" or "audio". Needed for videos, which are both images and audio.

    Returns:
        The source.

    Example:
        >>> to_source("a dog barks")
        Source(modality='text', content='a dog barks', start=None, end=None, prompt_name=None)
        >>> to_source("bark.wav").modality
        'audio'
        >>> to_source({"text": "bark.wav"}).modality
        'text'
    """
    if modality is not None and modality not in MODALITIES:
        raise InputError(describe_unknown("modality", str(modality), MODALITIES))
    if isinstance(value, Source):
        if modality not in (None, value.modality):
            raise InputError(f"the source is {value.modality}, but modality is {modality!r}")
        return value
    if isinstance(value, Mapping):
        return _unwrap(value, modality)
    if isinstance(value, str):
        return _read_string(value, modality)
    if isinstance(value, PathLike):
        return _read_path(Path(value), modality)
    if isinstance(value, Image.Image):
        _require(modality, "image", "a PIL image")
        return Source("image", Pixels(value))
    if isinstance(value, tuple):
        _require(modality, "audio", "a tuple (samples, rate)")
        if len(value) != 2:
            raise InputError(f"a tuple of {len(value)} values; audio is a tuple (samples, rate)")
        return Source("audio", make_waveform(*value))
    if isinstance(value, np.ndarray | torch.Tensor):
        array = _to_array(value)
        if modality == "audio" or (modality is None and array.ndim == 1):
            raise InputError("an audio array needs its sampling rate; give a tuple (samples, rate)")
        _require(modality, "image", "an array")
        return Source("image", make_pixels(array))
    raise InputError(f"{type(value).__name__} is not an input; give a text, a path, a PIL image or (samples, rate)")


def is_one_input(value: Any) -> bool:
    """Return whether a value is one input, and not a list or other iterable of inputs."""
    if isinstance(value, tuple):
        return len(value) == 2 and isinstance(value[1], int | np.integer) and not isinstance(value[0], str | PathLike)
    return isinstance(value, str | PathLike | Image.Image | np.ndarray | torch.Tensor | Mapping | Source)


def make_waveform(samples: Any, rate: Any) -> Waveform:
    """Convert samples of shape (time,), (channels, time) or (time, channels) to mono float32 samples."""
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 0 < rate <= 10_000_000:
        raise InputError(f"sampling rate {rate!r}; need a positive integer in Hz")
    array = _to_array(samples)
    if array.ndim not in (1, 2) or array.size == 0:
        raise InputError(f"audio samples have shape {array.shape}; need (time,) or (channels, time), not empty")
    if np.issubdtype(array.dtype, np.signedinteger):
        array = array.astype(np.float64) / -float(np.iinfo(array.dtype).min)
    elif not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"audio samples have dtype {array.dtype}; need floating point or signed integers")
    if array.ndim == 2:
        array = array.mean(axis=0 if array.shape[0] <= array.shape[1] else 1)
    mono = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(mono).all():
        raise InputError("audio samples contain NaN or infinity")
    return Waveform(mono, int(rate))


def make_pixels(array: np.ndarray) -> Pixels:
    """Convert an image array of shape (H, W), (H, W, C) or (C, H, W) to a PIL image."""
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or array.size == 0 or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise InputError(f"an image array has shape {array.shape}; need (height, width) or (height, width, 3)")
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # also NaN
            raise InputError(f"a floating-point image has values from {array.min():g} to {array.max():g}; need 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    elif array.dtype != np.uint8:
        raise InputError(f"an image array has dtype {array.dtype}; need uint8, or floating point from 0 to 1")
    return Pixels(Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2:] == (1,) else array)))


def _unwrap(value: Mapping[str, Any], modality: Modality | None) -> Source:
    if set(value) >= {"array", "sampling_rate"}:  # an audio example of the `datasets` library has also a path
        _require(modality, "audio", "a dictionary with array and sampling_rate")
        return Source("audio", make_waveform(value["array"], value["sampling_rate"]))
    if len(value) != 1 or next(iter(value)) not in MODALITIES:
        raise InputError(f"a dictionary with the keys {list(value)}; {WRAPPERS}, or give array and sampling_rate")
    ((name, content),) = value.items()
    wrapped = cast(Modality, name)
    _require(modality, wrapped, f"a dictionary with the key {wrapped}")
    return to_source(content, wrapped)


def _read_string(value: str, modality: Modality | None) -> Source:
    if modality == "text":
        return Source("text", value)
    if value.startswith(("http://", "https://")) and " " not in value:
        raise InputError(f"{value[:200]}: URLs are not downloaded; download the file and give its path")
    if modality is not None or ("\n" not in value and Path(value).suffix.lower() in MEDIA_EXTENSIONS):
        return _read_path(Path(value), modality)
    return Source("text", value)


def _read_path(path: Path, modality: Modality | None) -> Source:
    path = path.expanduser()
    modalities = modalities_of(path)
    if modality is None and len(modalities) != 1:
        reason = "a video is both image and audio" if modalities else "the extension is unknown"
        raise InputError(f"{path}: {reason}; give modality, or {WRAPPERS}")
    return Source(modality or modalities[0], path)


def _require(modality: Modality | None, expected: Modality, name: str) -> None:
    if modality not in (None, expected):
        raise InputError(f"{name} is {expected}, but modality is {modality!r}")


def _to_array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"not an array: {error}") from error
