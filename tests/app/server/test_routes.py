"""The routes as a program meets them: right answers, right shapes, right headers."""

import asyncio
import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import wave

import httpx
import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import check_error
from tests.media.media_files import save_video
from triptych.app import cli
from triptych.app.server import create_app, make_token
from triptych.app.server.errors import HTTPError
from triptych.app.server.schemas import Limits
from triptych.app.server.search import _weighted_medoid
from triptych.app.server.state import Metrics, MicroBatcher, RootCache
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.query import Query, QueryPart
from triptych.search.scan import items_from_folder

QUERY_TEXT = "a bell rings"


def search(client, *parts, **settings):
    answer = client.post("/v1/search", json={"parts": list(parts), **settings})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_search_matches_collection_search(client, collection):
    found = search(client, {"text": QUERY_TEXT}, k=7)
    hits = collection.search(Source("text", QUERY_TEXT), k=7)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in hits]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert [hit["relevance"] for hit in found["hits"]] == pytest.approx([hit.relevance for hit in hits], abs=1e-4)
    assert found["relevance_threshold"] == 0.5


def test_weighted_and_negative_parts(client, collection, ids):
    parts = [{"text": QUERY_TEXT}, {"item": ids["image"], "weight": 0.5}, {"text": "a frog", "weight": -1}]
    found = search(client, *parts, modalities=["audio"], k=5)["hits"]
    query = Query(
        (QueryPart(Source("text", QUERY_TEXT)), QueryPart(ids["image"], 0.5), QueryPart(Source("text", "a frog"), -1))
    )
    assert [hit["id"] for hit in found] == [hit.id for hit in collection.search(query, ["audio"], 5)]
    assert all(len(hit["parts"]) == 3 for hit in found)


@pytest.mark.parametrize(
    ("folder", "name", "modality"), [("images", "000003.png", "image"), ("audio", "000003.wav", "audio")]
)
def test_uploaded_indexed_file_is_excluded_unless_included(client, files, folder, name, modality):
    def search_by_upload(**more):
        form = {"query": json.dumps({"parts": [{"file": "mine"}], "modalities": [modality], "k": 5, **more})}
        sent = {"mine": (f"other{name}", (files / folder / name).read_bytes())}
        return client.post("/v1/search", data=form, files=sent).json()

    truncation_notes = ["audio queries are truncated to 10 s"] if modality == "audio" else []
    answer = search_by_upload(include_query=True)
    assert answer["hits"][0]["name"] == name
    assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert answer["notes"] == truncation_notes
    answer = search_by_upload()
    assert len(answer["hits"]) == 5
    assert name not in {hit["name"] for hit in answer["hits"]}
    own_items_note = f"the query is in the collection ({name}) and is not shown"
    assert answer["notes"] == [*truncation_notes, own_items_note]


def test_filters(client):
    hits = search(client, {"text": QUERY_TEXT}, filter={"columns": {"label": "frog"}}, k=30)["hits"]
    assert hits
    assert all(hit["columns"]["label"] == ["frog"] for hit in hits)
    hits = search(client, {"text": QUERY_TEXT}, filter={"folder": "world/images"}, k=30)["hits"]
    assert {hit["modality"] for hit in hits} == {"image"}
    assert search(client, {"text": QUERY_TEXT}, filter={"min_duration": 1000})["hits"] == []


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


def test_embeddings_follow_openai_format(client, collection):
    answer = client.post(
        "/v1/embeddings", json={"input": [QUERY_TEXT, "a frog"], "model": "text-embedding-3-small"}
    ).json()
    assert answer["object"] == "list"
    assert answer["model"] == "text-embedding-3-small"
    assert [one["index"] for one in answer["data"]] == [0, 1]
    expected = collection.space.embed_one(Source("text", QUERY_TEXT)).embedding[0].tolist()
    assert answer["data"][0]["embedding"] == pytest.approx(expected, abs=1e-5)
    packed = client.post("/v1/embeddings", json={"input": QUERY_TEXT, "encoding_format": "base64"}).json()
    assert np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4") == pytest.approx(expected, abs=1e-5)
    assert client.post("/v1/embeddings", json={"input": QUERY_TEXT, "dimensions": 7}).status_code == 422


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"] * 33, "input: 33 texts; give 1 to 32 per request"),
        ([], "input: 0 texts; give 1 to 32 per request"),
        ([[1, 2]], "input.0: Input should be a valid string"),
        (7, "input: give a text or a list of texts; token ids are not supported, found 7"),
        (["a", ""], "input.1: String should have at least 1 character, found ''"),
        ("", "input.0: String should have at least 1 character, found ''"),
    ],
    ids=["many", "none", "tokens", "number", "empty", "nothing"],
)
def test_invalid_embedding_inputs_get_clear_errors(client, given, message):
    assert check_error(client.post("/v1/embeddings", json={"input": given}), 422) == message


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
    picture = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['image']}/thumbnail?size=32").content))
    assert picture.size == (32, 32)
    item = client.get(f"/v1/items/{ids['audio']}").json()
    samples, rate = soundfile.read(files / "audio" / item["name"])
    outline = client.get(f"/v1/items/{ids['audio']}/peaks?count=50").json()
    assert len(outline["peaks"]) == 50
    assert outline["duration"] == pytest.approx(len(samples) / rate)
    assert max(high for _, high in outline["peaks"]) == pytest.approx(samples.max(), abs=0.1)
    spectrum = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/spectrogram?width=100").content))
    assert spectrum.size == (100, 96)
    with wave.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/audio.wav").content)) as made:
        assert made.getnframes() / made.getframerate() == pytest.approx(len(samples) / rate, abs=0.01)
    assert client.get(f"/v1/items/{ids['text']}/thumbnail").status_code == 404
    assert client.get(f"/v1/items/{ids['image']}/peaks").status_code == 404


def test_explanations_sum_to_score(client):
    for want in ("image", "audio", "text"):
        parts = [{"text": "two red bells ring"}, {"text": "a frog", "weight": -0.5}]
        hit = search(client, *parts, modalities=[want], k=1)["hits"][0]
        explanation = client.post("/v1/explain", json={"parts": parts, "item": hit["id"]}).json()
        assert [part["score"] for part in explanation["parts"]] == pytest.approx(hit["parts"], abs=1e-4)
        for part in explanation["parts"]:
            total = sum(map(sum, part["pair_contributions"]))
            assert total == pytest.approx(part["total"], abs=1e-3)
            assert part["total"] + part["residual"] == pytest.approx(part["score"], abs=1e-5)
            assert sum(part["query"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
            assert sum(part["hit"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
        words = explanation["parts"][0]["query"]
        assert [words["text"][slice(*map(int, place))] for place in words["locations"]] == [
            "two",
            "red",
            "bells",
            "ring",
        ]


def test_map_and_query_position(client):
    until = time.monotonic() + 60
    while (answer := client.get("/v1/map?column=label")).status_code == 202:
        assert time.monotonic() < until
        time.sleep(0.2)
    found = answer.json()
    assert len(found["ids"]) == len(set(found["ids"])) == found["total"] == client.get("/healthz").json()["items"]
    assert all(0 <= place <= 1 for place in (*found["x"], *found["y"]))
    assert set(found["legend"]) >= {"bell", "frog"}
    landing = client.post("/v1/map", json={"parts": [{"text": QUERY_TEXT}]}).json()
    positions = dict(zip(found["ids"], zip(found["x"], found["y"], strict=True), strict=True))
    neighbours = [positions[name] for name in landing["neighbours"]]
    assert any((landing["x"], landing["y"]) == pytest.approx(place, abs=1e-3) for place in neighbours)


def test_query_position_is_weighted_medoid():
    positions = np.array([[0.1, 0.1], [0.12, 0.1], [0.1, 0.13], [0.9, 0.9], [0.88, 0.9]])
    assert _weighted_medoid(positions, np.ones(5)).tolist() in positions[:3].tolist()
    assert _weighted_medoid(positions, np.array([0.1, 0.1, 0.1, 2, 1])).tolist() == [0.9, 0.9]


def test_report_review_and_health(client, collection):
    assert "the report" in client.get("/report").text
    page = client.get("/review", follow_redirects=True)
    assert "the review" in page.text
    assert client.get(str(page.url.join("../shown/a%20b.txt"))).text == "what is shown"
    assert "connect-src" not in client.get("/report").headers["Content-Security-Policy"]
    assert client.get("/healthz").json() == {"status": "ok", "items": len(collection), "queue_length": 0}
    counted = client.get("/metrics").text
    assert re.search(r'triptych_requests_total\{route="/v1/search",status="200"\} \d', counted)
    assert f"triptych_items {len(collection)}.0" in counted


def test_openapi_lists_routes_and_examples(client):
    openapi = client.get("/openapi.json").json()
    for path in (
        "/v1/search",
        "/v1/embeddings",
        "/v1/items/{item}",
        "/v1/items/{item}/media",
        "/v1/explain",
        "/v1/map",
    ):
        assert path in openapi["paths"]
    assert openapi["components"]["schemas"]["SearchRequest"]["examples"]
    assert "503" in openapi["paths"]["/v1/search"]["post"]["responses"]


def test_full_queue_returns_503_with_retry_after(collection, monkeypatch):
    limits = Limits(max_queue_length=2, retry_after=3)
    gate = threading.Event()
    real = MicroBatcher._run_batch

    def slow(self, batch):
        gate.wait(10)
        real(self, batch)

    monkeypatch.setattr(MicroBatcher, "_run_batch", slow)
    with run_server(create_app(collection, limits)) as where:
        responses = []

        def ask():
            responses.append(httpx.post(f"{where}/v1/search", json={"parts": [{"text": QUERY_TEXT}]}, timeout=30))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        while len(responses) < 4:
            time.sleep(0.01)
        gate.set()
        for thread in threads:
            thread.join()
    rejected = [answer for answer in responses if answer.status_code == 503]
    assert len(rejected) == 4
    assert {answer.headers["Retry-After"] for answer in rejected} == {"3"}
    assert sum(answer.status_code == 200 for answer in responses) == 2


def test_too_many_uploads_return_503(collection, files, monkeypatch):
    gate, real = threading.Event(), MicroBatcher._run_batch

    def slow(self, batch):
        if batch[0].source.modality != "text":
            gate.wait(10)
        real(self, batch)

    monkeypatch.setattr(MicroBatcher, "_run_batch", slow)
    picture = (files / "images" / "000003.png").read_bytes()
    with run_server(create_app(collection, Limits(max_uploads=2, retry_after=3))) as where:
        responses = []

        def ask():
            form = {"query": json.dumps({"parts": [{"file": "mine"}], "k": 1})}
            responses.append(
                httpx.post(f"{where}/v1/search", data=form, files={"mine": ("a.png", picture)}, timeout=30)
            )

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while len(responses) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert [answer.status_code for answer in responses] == [503] * 3
        assert {answer.headers["Retry-After"] for answer in responses} == {"3"}
        assert "2 requests with files" in responses[0].json()["error"]["message"]
        gate.set()
        for thread in threads:
            thread.join()
        ask()
    assert [answer.status_code for answer in responses[3:]] == [200] * 3


def test_explain_works_without_uploads(collection, ids):
    with run_server(create_app(collection, Limits(max_uploads=0))) as where:
        asked = {"parts": [{"text": QUERY_TEXT}], "item": ids["image"]}
        assert httpx.post(f"{where}/v1/explain", json=asked, timeout=30).status_code == 200


def test_explanations_name_their_query_part(client, ids, tmp_path):
    film = save_video(tmp_path / "clip.mp4", seconds=2.0).read_bytes()
    asked = {"parts": [{"file": "film"}, {"text": QUERY_TEXT}], "item": ids["image"]}
    told = client.post("/v1/explain", data={"query": json.dumps(asked)}, files={"film": ("clip.mp4", film)}).json()
    found = [(part["part_index"], part["query"]["modality"], part["weight"]) for part in told["parts"]]
    assert found == [(0, "image", 0.5), (0, "audio", 0.5), (1, "text", 1.0)]


def test_roots_follow_collection_changes(run_dir, files, tmp_path):
    def build_collection(folder, rebuild):
        made = Collection.create(tmp_path / "collection", run_dir, rebuild)
        made.index(list(items_from_folder(folder, made.space))[:3], folder, show_progress=False)

    build_collection(files / "images", rebuild=False)
    reader, roots = Collection.open(tmp_path / "collection"), RootCache()
    assert [root.name for root in roots.load_roots(reader)] == ["images"]
    build_collection(files / "audio", rebuild=True)
    reader.list_items()
    assert [root.name for root in roots.load_roots(reader)] == ["audio"]


def test_waiting_requests_share_a_batch(collection):
    metrics = Metrics()
    batches = MicroBatcher(collection.space, Limits(), metrics)
    texts = [f"{count} bells" for count in ("one", "two", "three of the red", "four")]

    async def ask():
        return await asyncio.gather(*(batches.embed([Source("text", words)]) for words in texts))

    found = asyncio.run(ask())
    batches.close()
    for words, (features,) in zip(texts, found, strict=True):
        expected = collection.space.embed_one(Source("text", words))
        assert torch.allclose(features.embedding, expected.embedding, atol=1e-5)
        assert features.parts.shape == expected.parts.shape
    assert metrics.batch_size._sum.get() == 4
    assert "triptych_batch_size_count 4.0" not in metrics.render().decode()  # at least two of them shared a batch


def test_slow_embedding_times_out(collection, monkeypatch):
    batches = MicroBatcher(collection.space, Limits(request_timeout=0.1), Metrics())
    monkeypatch.setattr(batches, "_run_batch", lambda batch: time.sleep(0.5))
    with pytest.raises(HTTPError, match=r"not embedded within 0\.1 s"):
        asyncio.run(batches.embed([Source("text", QUERY_TEXT)]))
    assert batches.queue_length == 0
    batches.close()


def test_token_is_required_only_beyond_loopback():
    assert make_token("127.0.0.1") is make_token("localhost") is make_token("::1") is None
    tokens = {make_token("0.0.0.0"), make_token("192.168.1.5"), make_token("::"), make_token("myhost")}
    assert len(tokens) == 4
    assert all(len(token or "") >= 40 for token in tokens)


def test_serve_passes_collection_uri_unchanged():
    result = CliRunner().invoke(cli.app, ["serve", "memory://nothing"])
    assert isinstance(result.exception, CollectionError)
    assert str(result.exception).startswith("memory://nothing: no collection here")


@pytest.mark.slow
def test_serve_with_token_until_interrupted(collection):
    command = [sys.executable, "-m", "triptych", "serve", collection.uri, "--port", "0", "--host", "0.0.0.0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"(\d+) items at http://0\.0\.0\.0:(\d+)/\?token=(\S+)", line)
        assert found, line
        assert int(found[1]) == len(collection)
        where = f"http://127.0.0.1:{found[2]}/v1/collection"
        answer = httpx.get(where, headers={"Authorization": f"Bearer {found[3]}"}, timeout=30)
        assert answer.json()["items"] == len(collection)
        assert httpx.get(where).status_code == 401
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert "Traceback" not in said
        assert "every request needs this token" in said
        assert found[3] not in said
    finally:
        process.kill()
        process.communicate()
