"""Inlined media: thumbnails and short audio as data: URIs, up to a limit."""

import base64
import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.interfaces import Source
from triptych.report.page import SAMPLE_RATE, MediaInliner, encode_audio, encode_image


def decode_data_uri(data_uri, media_type):
    head, _, data = data_uri.partition(",")
    assert head == f"data:{media_type};base64"
    return base64.b64decode(data)


def test_images_are_downscaled(tmp_path):
    wide = np.zeros((400, 800, 3), np.uint8)
    wide[:, :400] = 200, 30, 30
    Image.fromarray(wide).save(tmp_path / "wide.png")
    data_uri = encode_image(Source("image", tmp_path / "wide.png"))
    small = Image.open(
        io.BytesIO(decode_data_uri(data_uri, f"image/{'png' if 'png' in data_uri[:20] else 'jpeg'}"))
    ).convert("RGB")
    assert small.size == (192, 96)
    assert np.allclose(np.asarray(small)[48, 40], (200, 30, 30), atol=12)
    assert np.allclose(np.asarray(small)[48, 150], 0, atol=12)


def test_audio_is_cut_to_the_segment_and_shortened(tmp_path):
    rate = 16_000
    time = np.arange(10 * rate) / rate
    soundfile.write(tmp_path / "s.wav", 0.5 * np.sin(2 * np.pi * np.where(time < 3, 300, 900) * time), rate)
    for start, end, seconds, hertz in ((None, None, 6, 300), (4.0, 5.5, 1.5, 900)):
        data = decode_data_uri(encode_audio(Source("audio", tmp_path / "s.wav", start, end)), "audio/mpeg")
        samples, decoded_rate = soundfile.read(io.BytesIO(data))
        assert decoded_rate == SAMPLE_RATE
        assert len(samples) / SAMPLE_RATE == pytest.approx(seconds, abs=0.1)
        spectrum = np.abs(np.fft.rfft(samples[: int(1.2 * SAMPLE_RATE)]))
        assert np.argmax(spectrum) / 1.2 == pytest.approx(hertz, rel=0.02)
        assert len(data) < 20_000 * seconds


def test_files_beyond_the_limit_or_unreadable_have_no_data_uri(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    inliner = MediaInliner(max_bytes=400)
    source = Source("image", tmp_path / "a.png")
    size = len(inliner.data_uri(source) or "")
    assert 0 < size < 400
    assert inliner.remaining_bytes == 400 - size
    while inliner.data_uri(source):
        pass
    assert inliner.remaining_bytes >= 0
    assert MediaInliner().data_uri(Source("image", tmp_path / "b.png")) is None
