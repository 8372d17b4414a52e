"""Shared state: micro-batching, full queues, timeouts, indexed folders."""

import asyncio
import json
import threading
import time

import httpx
import pytest
import torch

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import QUERY_TEXT
from triptych.app.server import create_app
from triptych.app.server.errors import HTTPError
from triptych.app.server.limits import Limits
from triptych.app.server.state import Metrics, MicroBatcher
from triptych.interfaces import Source


def test_full_queue_returns_503_with_retry_after(collection, monkeypatch):
    limits = Limits(max_queue_length=2, retry_after=3)
    gate = threading.Event()
    run_batch = MicroBatcher._run_batch

    def run_slowly(self, batch):
        gate.wait(10)
        run_batch(self, batch)

    monkeypatch.setattr(MicroBatcher, "_run_batch", run_slowly)
    with run_server(create_app(collection, limits)) as url:
        responses = []

        def send_request():
            responses.append(httpx.post(f"{url}/v1/search", json={"parts": [{"text": QUERY_TEXT}]}, timeout=30))

        threads = [threading.Thread(target=send_request) for _ in range(6)]
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
    gate, run_batch = threading.Event(), MicroBatcher._run_batch

    def run_slowly(self, batch):
        if batch[0].source.modality != "text":
            gate.wait(10)
        run_batch(self, batch)

    monkeypatch.setattr(MicroBatcher, "_run_batch", run_slowly)
    image = (files / "images" / "000003.png").read_bytes()
    with run_server(create_app(collection, Limits(max_uploads=2, retry_after=3))) as url:
        responses = []

        def send_request():
            form = {"query": json.dumps({"parts": [{"file": "mine"}], "k": 1})}
            responses.append(httpx.post(f"{url}/v1/search", data=form, files={"mine": ("a.png", image)}, timeout=30))

        threads = [threading.Thread(target=send_request) for _ in range(5)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while len(responses) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [answer.status_code for answer in responses] == [503] * 3
        assert {answer.headers["Retry-After"] for answer in responses} == {"3"}
        assert "2 requests with files" in responses[0].json()["error"]["message"]
        gate.set()
        for thread in threads:
            thread.join()
        send_request()
    assert [answer.status_code for answer in responses[3:]] == [200] * 3


def test_waiting_requests_share_a_batch(collection):
    metrics = Metrics()
    batcher = MicroBatcher(collection.space, Limits(), metrics)
    texts = [f"{count} bells" for count in ("one", "two", "three of the red", "four")]

    async def send_request():
        return await asyncio.gather(*(batcher.embed([Source("text", text)]) for text in texts))

    features_per_text = asyncio.run(send_request())
    batcher.close()
    for text, (features,) in zip(texts, features_per_text, strict=True):
        expected = collection.space.embed_one(Source("text", text))
        assert torch.allclose(features.embedding, expected.embedding, atol=1e-5)
        assert features.parts.shape == expected.parts.shape
    assert metrics.batch_size._sum.get() == 4
    assert (
        "triptych_batch_size_count 4.0" not in metrics.format_prometheus().decode()
    )  # at least two of them shared a batch


def test_slow_embedding_times_out(collection, monkeypatch):
    batcher = MicroBatcher(collection.space, Limits(request_timeout=0.1), Metrics())
    monkeypatch.setattr(batcher, "_run_batch", lambda batch: time.sleep(0.5))
    with pytest.raises(HTTPError, match=r"the query was not embedded within 0\.1 s"):
        asyncio.run(batcher.embed([Source("text", QUERY_TEXT)]))
    assert batcher.queue_length == 0
    batcher.close()
