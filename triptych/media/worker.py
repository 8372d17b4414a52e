"""The worker process that decodes untrusted files. `media/sandbox.py` passes it a memory limit in bytes."""

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
from triptych.media import audio, image, inspection, text, video
from triptych.media.sandbox import DECODERS, ERROR, HEADER, JSON, MAX_ERROR_BYTES, PIXELS, SAMPLES

DECODER_MODULES = (audio, inspection, image, text, video)  # imported to register their decoders
MAX_OPEN_FILES = 64
GRACE_SECONDS = 5  # CPU time allowed beyond the timeout, at which the parent normally kills this process


def main() -> None:
    """Answer requests until stdin is closed."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # decoders that print must not write into replies
    _set_limit("RLIMIT_AS", int(sys.argv[1]))
    _set_limit("RLIMIT_CORE", 0)
    _set_limit("RLIMIT_FSIZE", 0)
    _set_limit("RLIMIT_NOFILE", MAX_OPEN_FILES)
    Image.MAX_IMAGE_PIXELS = None  # sizes are checked by `limits`, and memory is limited
    for line in requests:
        request = json.loads(line)
        _limit_cpu_time(request["timeout"] + GRACE_SECONDS)
        try:
            _write_reply(replies, _decode(request))
        except TriptychError as error:
            _write_bytes(replies, ERROR, str(error).encode("utf-8", "replace")[:MAX_ERROR_BYTES])


def _decode(request: dict[str, Any]) -> Any:
    return DECODERS[request["decoder"]](Path(request["path"]), **request["arguments"])


def _write_reply(replies: BinaryIO, result: Any) -> None:
    if isinstance(result, Image.Image):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        lengths = (*result.shape, 0, 0, 0)[:3]
        replies.write(HEADER.pack(SAMPLES if result.dtype == np.float32 else PIXELS, result.ndim, *lengths))
        replies.write(np.ascontiguousarray(result).data)
        replies.flush()
        return
    json_value = dataclasses.asdict(result) if isinstance(result, inspection.MediaInfo) else result
    _write_bytes(replies, JSON, json.dumps(json_value).encode())


def _write_bytes(replies: BinaryIO, tag: bytes, content: bytes) -> None:
    replies.write(HEADER.pack(tag, 1, len(content), 0, 0))
    replies.write(content)
    replies.flush()


def _set_limit(name: str, value: int) -> None:
    """Set a resource limit if the platform supports it: Windows has no resource limits, macOS lacks some."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(getattr(resource, name))
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(getattr(resource, name), (limit, limit))


def _limit_cpu_time(seconds: float) -> None:
    """Let the operating system end this process after `seconds` more of CPU time, even if the parent has ended."""
    try:
        import resource
    except ImportError:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


if __name__ == "__main__":
    main()
