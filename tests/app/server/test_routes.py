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

from tests.app.server.asking import refused
from tests.app.server.conftest import listening
from tests.media.made import save_film
from triptych.app import cli
from triptych.app.server import application, token_for
from triptych.app.server.batches import Batches
from triptych.app.server.described import Roots
from triptych.app.server.limits import Limits
from triptych.app.server.maps import _middle
from triptych.app.server.metrics import Metrics
from triptych.app.server.problems import Refusal
from triptych.contracts import Source
from triptych.errors import CollectionError
from triptych.search.collection import Collection
from triptych.search.items import items_in
from triptych.search.query import Part, Query

WORDS = "a bell rings"


def search(client, *parts, **settings):
    answer = client.post("/v1/search", json={"parts": list(parts), **settings})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_server_finds_what_the_collection_finds(client, collection):
    found = search(client, {"text": WORDS}, k=7)
    hits = collection.search(Source("text", WORDS), k=7)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in hits]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert [hit["relevance"] for hit in found["hits"]] == pytest.approx([hit.relevance for hit in hits], abs=1e-4)
    assert found["line"] == 0.5


def test_parts_weights_and_minus_go_through(client, collection, ids):
    parts = [{"text": WORDS}, {"item": ids["image"], "weight": 0.5}, {"text": "a frog", "weight": -1}]
    found = search(client, *parts, want=["audio"], k=5)["hits"]
    query = Query((Part(Source("text", WORDS)), Part(ids["image"], 0.5), Part(Source("text", "a frog"), -1)))
    assert [hit["id"] for hit in found] == [hit.id for hit in collection.search(query, ["audio"], 5)]
    assert all(len(hit["parts"]) == 3 for hit in found)


@pytest.mark.parametrize(
    ("folder", "name", "modality"), [("images", "000003.png", "image"), ("sounds", "000003.wav", "audio")]
)
def test_an_uploaded_file_of_the_collection_finds_itself_only_when_told_to(client, files, folder, name, modality):
    def asked(**more):
        form = {"query": json.dumps({"parts": [{"file": "mine"}], "want": [modality], "k": 5, **more})}
        sent = {"mine": (f"other{name}", (files / folder / name).read_bytes())}
        return client.post("/v1/search", data=form, files=sent).json()

    heard = ["of a sound the first 10 s are heard"] if modality == "audio" else []
    answer = asked(include_query=True)
    assert answer["hits"][0]["name"] == name
    assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert answer["notes"] == heard
    answer = asked()
    assert len(answer["hits"]) == 5
    assert name not in {hit["name"] for hit in answer["hits"]}
    left_out = f"what was asked with is in the collection itself ({name}) and is not shown"
    assert answer["notes"] == [*heard, left_out]


def test_filters(client):
    hits = search(client, {"text": WORDS}, where={"columns": {"label": "frog"}}, k=30)["hits"]
    assert hits
    assert all(hit["columns"]["label"] == ["frog"] for hit in hits)
    hits = search(client, {"text": WORDS}, where={"folder": "world/images"}, k=30)["hits"]
    assert {hit["modality"] for hit in hits} == {"image"}
    assert search(client, {"text": WORDS}, where={"longer": 1000})["hits"] == []


def test_similar_leaves_out_the_item_itself(client, ids):
    hits = client.get(f"/v1/items/{ids['image']}/similar?want=image&k=5").json()["hits"]
    assert len(hits) == 5
    assert ids["image"] not in {hit["id"] for hit in hits}


def test_an_item_tells_what_belongs_to_it(client, ids):
    item = client.get(f"/v1/items/{ids['audio']}").json()
    assert item["folder"] == "world/sounds"
    stem = item["name"].removesuffix(".wav")
    assert f"{stem}.png" in {other["name"] for other in item["siblings"]}
    assert {other["modality"] for other in item["siblings"]} == {"image", "text"}
    assert "/tmp" not in json.dumps(item)


def test_embeddings_have_the_shape_of_openai(client, collection):
    answer = client.post("/v1/embeddings", json={"input": [WORDS, "a frog"], "model": "text-embedding-3-small"}).json()
    assert answer["object"] == "list"
    assert answer["model"] == "text-embedding-3-small"
    assert [one["index"] for one in answer["data"]] == [0, 1]
    expected = collection.space.embed_one(Source("text", WORDS)).embedding[0].tolist()
    assert answer["data"][0]["embedding"] == pytest.approx(expected, abs=1e-5)
    packed = client.post("/v1/embeddings", json={"input": WORDS, "encoding_format": "base64"}).json()
    assert np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4") == pytest.approx(expected, abs=1e-5)
    assert client.post("/v1/embeddings", json={"input": WORDS, "dimensions": 7}).status_code == 422


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"] * 33, "input: 33 texts; give 1 to 32 in one request, and the rest in others"),
        ([], "input: 0 texts; give 1 to 32 in one request, and the rest in others"),
        ([[1, 2]], "input.0: Input should be a valid string"),
        (7, "input: give a text, or a list of texts; tokens are not taken, found 7"),
        (["a", ""], "input.1: String should have at least 1 character, found ''"),
        ("", "input.0: String should have at least 1 character, found ''"),
    ],
    ids=["many", "none", "tokens", "number", "empty", "nothing"],
)
def test_what_is_wrong_with_texts_to_embed_is_told(client, given, message):
    assert refused(client.post("/v1/embeddings", json={"input": given}), 422) == message


def test_media_come_whole_or_by_range(client, ids, files):
    item = client.get(f"/v1/items/{ids['audio']}").json()
    data = (files / "sounds" / item["name"]).read_bytes()
    answer = client.get(f"/v1/items/{ids['audio']}/media")
    assert answer.content == data
    assert answer.headers["Content-Type"] == "audio/wav"
    assert answer.headers["Accept-Ranges"] == "bytes"
    part = client.get(f"/v1/items/{ids['audio']}/media", headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == data[100:200]
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    assert client.get(f"/v1/items/{ids['text']}/media").status_code == 404


def test_what_one_sees_of_an_item(client, ids, files):
    picture = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['image']}/thumbnail?size=32").content))
    assert picture.size == (32, 32)
    item = client.get(f"/v1/items/{ids['audio']}").json()
    samples, rate = soundfile.read(files / "sounds" / item["name"])
    outline = client.get(f"/v1/items/{ids['audio']}/peaks?count=50").json()
    assert len(outline["peaks"]) == 50
    assert outline["seconds"] == pytest.approx(len(samples) / rate)
    assert max(high for _, high in outline["peaks"]) == pytest.approx(samples.max(), abs=0.1)
    spectrum = Image.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/spectrogram?width=100").content))
    assert spectrum.size == (100, 96)
    with wave.open(io.BytesIO(client.get(f"/v1/items/{ids['audio']}/sound.wav").content)) as made:
        assert made.getnframes() / made.getframerate() == pytest.approx(len(samples) / rate, abs=0.01)
    assert client.get(f"/v1/items/{ids['text']}/thumbnail").status_code == 404
    assert client.get(f"/v1/items/{ids['image']}/peaks").status_code == 404


def test_reasons_add_up_to_the_score_of_the_hit(client):
    for want in ("image", "audio", "text"):
        parts = [{"text": "two red bells ring"}, {"text": "a frog", "weight": -0.5}]
        hit = search(client, *parts, want=[want], k=1)["hits"][0]
        told = client.post("/v1/explain", json={"parts": parts, "item": hit["id"]}).json()
        assert [part["score"] for part in told["parts"]] == pytest.approx(hit["parts"], abs=1e-4)
        for part in told["parts"]:
            total = sum(map(sum, part["pairs"]))
            assert total == pytest.approx(part["total"], abs=1e-3)
            assert part["total"] + part["rest"] == pytest.approx(part["score"], abs=1e-5)
            assert sum(part["query"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
            assert sum(part["hit"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
        words = told["parts"][0]["query"]
        assert [words["text"][slice(*map(int, place))] for place in words["places"]] == ["two", "red", "bells", "ring"]


def test_the_map_shows_everything_and_where_a_query_lands(client):
    until = time.monotonic() + 60
    while (answer := client.get("/v1/map?column=label")).status_code == 202:
        assert time.monotonic() < until
        time.sleep(0.2)
    found = answer.json()
    assert len(found["ids"]) == len(set(found["ids"])) == found["total"] == client.get("/healthz").json()["items"]
    assert all(0 <= place <= 1 for place in (*found["x"], *found["y"]))
    assert set(found["legend"]) >= {"bell", "frog"}
    landing = client.post("/v1/map", json={"parts": [{"text": WORDS}]}).json()
    places = dict(zip(found["ids"], zip(found["x"], found["y"], strict=True), strict=True))
    near = [places[name] for name in landing["near"]]
    assert any((landing["x"], landing["y"]) == pytest.approx(place, abs=1e-3) for place in near)


def test_a_query_lands_where_most_of_its_hits_are_and_not_between_them():
    places = np.array([[0.1, 0.1], [0.12, 0.1], [0.1, 0.13], [0.9, 0.9], [0.88, 0.9]])
    assert _middle(places, np.ones(5)).tolist() in places[:3].tolist()
    assert _middle(places, np.array([0.1, 0.1, 0.1, 2, 1])).tolist() == [0.9, 0.9]


def test_report_review_and_health(client, collection):
    assert "the report" in client.get("/report").text
    page = client.get("/review", follow_redirects=True)
    assert "the review" in page.text
    assert client.get(str(page.url.join("../shown/a%20b.txt"))).text == "what is shown"
    assert "connect-src" not in client.get("/report").headers["Content-Security-Policy"]
    assert client.get("/healthz").json() == {"status": "ok", "items": len(collection), "waiting": 0}
    counted = client.get("/metrics").text
    assert re.search(r'triptych_requests_total\{route="/v1/search",status="200"\} \d', counted)
    assert f"triptych_items {len(collection)}.0" in counted


def test_the_description_has_every_route_and_examples(client):
    told = client.get("/openapi.json").json()
    for path in (
        "/v1/search",
        "/v1/embeddings",
        "/v1/items/{item}",
        "/v1/items/{item}/media",
        "/v1/explain",
        "/v1/map",
    ):
        assert path in told["paths"]
    assert told["components"]["schemas"]["SearchQuery"]["examples"]
    assert "503" in told["paths"]["/v1/search"]["post"]["responses"]


def test_a_crowd_is_turned_away_with_the_time_to_come_back(collection, monkeypatch):
    limits = Limits(waiting=2, retry_seconds=3)
    gate = threading.Event()
    real = Batches._run

    def slow(self, batch):
        gate.wait(10)
        real(self, batch)

    monkeypatch.setattr(Batches, "_run", slow)
    with listening(application(collection, limits)) as where:
        found = []

        def ask():
            found.append(httpx.post(f"{where}/v1/search", json={"parts": [{"text": WORDS}]}, timeout=30))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        while len(found) < 4:
            time.sleep(0.01)
        gate.set()
        for thread in threads:
            thread.join()
    refused = [answer for answer in found if answer.status_code == 503]
    assert len(refused) == 4
    assert {answer.headers["Retry-After"] for answer in refused} == {"3"}
    assert sum(answer.status_code == 200 for answer in found) == 2


def test_a_crowd_with_files_is_turned_away_while_words_are_welcome(collection, files, monkeypatch):
    gate, real = threading.Event(), Batches._run

    def slow(self, batch):
        if batch[0].source.modality != "text":
            gate.wait(10)
        real(self, batch)

    monkeypatch.setattr(Batches, "_run", slow)
    picture = (files / "images" / "000003.png").read_bytes()
    with listening(application(collection, Limits(uploads=2, retry_seconds=3))) as where:
        found = []

        def ask():
            form = {"query": json.dumps({"parts": [{"file": "mine"}], "k": 1})}
            found.append(httpx.post(f"{where}/v1/search", data=form, files={"mine": ("a.png", picture)}, timeout=30))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while len(found) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert [answer.status_code for answer in found] == [503] * 3
        assert {answer.headers["Retry-After"] for answer in found} == {"3"}
        assert "2 requests with files" in found[0].json()["error"]["message"]
        gate.set()
        for thread in threads:
            thread.join()
        ask()
    assert [answer.status_code for answer in found[3:]] == [200] * 3


def test_a_server_that_takes_no_files_still_explains(collection, ids):
    with listening(application(collection, Limits(uploads=0))) as where:
        asked = {"parts": [{"text": WORDS}], "item": ids["image"]}
        assert httpx.post(f"{where}/v1/explain", json=asked, timeout=30).status_code == 200


def test_reasons_name_the_part_they_are_of(client, ids, tmp_path):
    film = save_film(tmp_path / "clip.mp4", seconds=2.0).read_bytes()
    asked = {"parts": [{"file": "film"}, {"text": WORDS}], "item": ids["image"]}
    told = client.post("/v1/explain", data={"query": json.dumps(asked)}, files={"film": ("clip.mp4", film)}).json()
    found = [(part["part"], part["query"]["modality"], part["weight"]) for part in told["parts"]]
    assert found == [(0, "image", 0.5), (0, "audio", 0.5), (1, "text", 1.0)]


def test_the_folders_are_those_of_the_collection_as_it_is_now(run, files, tmp_path):
    def indexed(folder, rebuild):
        made = Collection.create(tmp_path / "collection", run, rebuild)
        made.index(list(items_in(folder, made.space))[:3], folder, show=False)

    indexed(files / "images", rebuild=False)
    reader, roots = Collection.open(tmp_path / "collection"), Roots()
    assert [root.name for root in roots.of(reader)] == ["images"]
    indexed(files / "sounds", rebuild=True)
    reader.entries()
    assert [root.name for root in roots.of(reader)] == ["sounds"]


def test_requests_that_wait_go_through_the_encoder_together(collection):
    metrics = Metrics()
    batches = Batches(collection.space, Limits(), metrics)
    texts = [f"{count} bells" for count in ("one", "two", "three of the red", "four")]

    async def ask():
        return await asyncio.gather(*(batches.embed([Source("text", words)]) for words in texts))

    found = asyncio.run(ask())
    batches.close()
    for words, (features,) in zip(texts, found, strict=True):
        alone = collection.space.embed_one(Source("text", words))
        assert torch.allclose(features.embedding, alone.embedding, atol=1e-5)
        assert features.parts.shape == alone.parts.shape
    assert metrics.batch._sum.get() == 4
    assert "triptych_batch_size_count 4.0" not in metrics.text().decode()  # at least two of them shared a batch


def test_a_source_that_takes_too_long_is_given_up(collection, monkeypatch):
    batches = Batches(collection.space, Limits(work_seconds=0.1), Metrics())
    monkeypatch.setattr(batches, "_run", lambda batch: time.sleep(0.5))
    with pytest.raises(Refusal, match=r"not embedded within 0\.1 s"):
        asyncio.run(batches.embed([Source("text", WORDS)]))
    assert batches.busy == 0
    batches.close()


def test_a_token_is_made_only_where_others_can_reach():
    assert token_for("127.0.0.1") is token_for("localhost") is token_for("::1") is None
    tokens = {token_for("0.0.0.0"), token_for("192.168.1.5"), token_for("::"), token_for("myhost")}
    assert len(tokens) == 4
    assert all(len(token or "") >= 40 for token in tokens)


def test_the_command_takes_an_address_as_it_is():
    result = CliRunner().invoke(cli.app, ["serve", "memory://nothing"])
    assert isinstance(result.exception, CollectionError)
    assert str(result.exception).startswith("memory://nothing: no collection here")


@pytest.mark.slow
def test_the_command_serves_with_a_token_until_it_is_stopped(collection):
    command = [sys.executable, "-m", "triptych", "serve", collection.place, "--port", "0", "--host", "0.0.0.0"]
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
