"""The process in which files of strangers are decoded; `media/sandbox.py` starts it with its most bytes of memory."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from triptych.errors import TriptychError
from triptych.media import audio, contents, image, text, video
from triptych.media.sandbox import DECODERS, ERROR, HEADER, MOST_MESSAGE, PIXELS, PLAIN, SAMPLES

MODULES = (audio, contents, image, text, video)  # imported for the decoders in them
MOST_FILES = 64  # open at once
SPARE = 5  # seconds of processor time after the deadline, by which the one who asks has stopped this process itself


def main() -> None:
    """Answer questions until there are no more."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a decoder that prints must not write into an answer
    _limit("RLIMIT_AS", int(sys.argv[1]))
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_FSIZE", 0)
    _limit("RLIMIT_NOFILE", MOST_FILES)
    Image.MAX_IMAGE_PIXELS = None  # sizes are judged by those who ask, and memory has its limit
    for line in questions:
        question = json.loads(line)
        _limit_processor(question["seconds"] + SPARE)
        try:
            _write(answers, _decode(question))
        except TriptychError as error:
            _write_bytes(answers, ERROR, str(error).encode("utf-8", "replace")[:MOST_MESSAGE])


def _decode(question: dict[str, Any]) -> Any:
    return DECODERS[question["decoder"]](Path(question["path"]), **question["arguments"])


def _write(answers: BinaryIO, result: Any) -> None:
    if isinstance(result, Image.Image):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        lengths = (*result.shape, 0, 0, 0)[:3]
        answers.write(HEADER.pack(SAMPLES if result.dtype == np.float32 else PIXELS, result.ndim, *lengths))
        answers.write(np.ascontiguousarray(result).data)
        answers.flush()
        return
    plain = dataclasses.asdict(result) if isinstance(result, contents.Contents) else result
    _write_bytes(answers, PLAIN, json.dumps(plain).encode())


def _write_bytes(answers: BinaryIO, kind: bytes, content: bytes) -> None:
    answers.write(HEADER.pack(kind, 1, len(content), 0, 0))
    answers.write(content)
    answers.flush()


def _limit(name: str, most: int) -> None:
    """Set a limit of this process, where the system has such limits: Windows has none, macOS not all of them."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(getattr(resource, name))
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(getattr(resource, name), (allowed, allowed))


def _limit_processor(seconds: float) -> None:
    """End this process after so much more processor time, even if nobody is left to stop it."""
    try:
        import resource
    except ImportError:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


if __name__ == "__main__":
    main()
