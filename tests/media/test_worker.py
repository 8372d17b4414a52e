"""The worker process: imports and memory limit."""

import subprocess
import sys
from contextlib import closing

import pytest
from PIL import Image

from triptych.errors import MediaError
from triptych.media import image
from triptych.media.sandbox import WorkerPool

pytestmark = pytest.mark.slow

TIMEOUT = 60.0  # seconds, longer than any call of these tests


def test_a_worker_does_not_import_torch():
    """Torch takes seconds to import, and gigabytes of address space."""
    code = "import sys, triptych.media.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_memory_is_limited(tmp_path):
    small_path = tmp_path / "small.jpg"
    Image.effect_noise((400, 300), 50).save(small_path)
    path = tmp_path / "large.png"
    Image.new("RGB", (5000, 5000)).save(path)
    with closing(WorkerPool(TIMEOUT, 330_000_000)) as pool, pool.sandbox():
        with pytest.raises(MediaError, match=r"large.png: (not enough memory|broken image data|the decoder's)"):
            image.load(path)
        assert image.load(small_path).size == (400, 300)
