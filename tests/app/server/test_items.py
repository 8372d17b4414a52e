"""Routes for items: siblings, similar items, media files and previews."""

import io
import json
import wave

import pytest
import soundfile
from PIL import Image


def test_similar_excludes_the_item(client, ids):
    hits = client.get(f"/v1/items/{ids['image']}/similar?modality=image&k=5").json()["hits"]
    assert len(hits) == 5
    assert ids["image"] not in {hit["id"] for hit in hits}


def test_item_lists_siblings(client, ids):
    item = client.get(f"/v1/items/{ids['audio']}").json()
    assert item["folder"] == "world/audio"
    stem = item["name"].removesuffix(".wav")
    assert f"{stem}.png" in {other["name"] for other in item["siblings"]}
    assert {other["modality"] for other in item["siblings"]} == {"image", "text"}
    assert "/tmp" not in json.dumps(item)


def test_media_whole_file_and_range(client, ids, files):
    item = client.get(f"/v1/items/{ids['audio']}").json()
    data = (files / "audio" / item["name"]).read_bytes()
    answer = client.get(f"/v1/items/{ids['audio']}/media")
    assert answer.content == data
    assert answer.headers["Content-Type"] == "audio/wav"
    assert answer.headers["Accept-Ranges"] == "bytes"
    part = client.get(f"/v1/items/{ids['audio']}/media", headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == data[100:200]
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    assert client.get(f"/v1/items/{ids['text']}/media").status_code == 404


def test_item_previews(client, ids, files):
    thumbnail = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['image']}/thumbnail?size=32").content))
    assert thumbnail.size == (32, 32)
    item = client.get(f"/v1/items/{ids['audio']}").json()
    samples, rate = soundfile.read(files / "audio" / item["name"])
    outline = client.get(f"/v1/items/{ids['audio']}/peaks?count=50").json()
    assert len(outline["peaks"]) == 50
    assert outline["duration"] == pytest.approx(len(samples) / rate)
    assert max(high for _, high in outline["peaks"]) == pytest.approx(samples.max(), abs=0.1)
    spectrogram = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/spectrogram?width=100").content))
    assert spectrogram.size == (100, 96)
    with wave.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/audio.wav").content)) as wav:
        assert wav.getnframes() / wav.getframerate() == pytest.approx(len(samples) / rate, abs=0.01)
    assert client.get(f"/v1/items/{ids['text']}/thumbnail").status_code == 404
    assert client.get(f"/v1/items/{ids['image']}/peaks").status_code == 404
