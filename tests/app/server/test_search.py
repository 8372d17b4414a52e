"""Routes for search, embeddings, explanations and the map, compared with the collection."""

import base64
import json
import time

import httpx
import numpy as np
import pytest

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import QUERY_TEXT, check_error, search
from tests.media.media_files import save_video
from triptych.app.server import create_app
from triptych.app.server.limits import Limits
from triptych.app.server.search import _weighted_medoid
from triptych.interfaces import Source
from triptych.search.query import Query, QueryPart, StoredItem


def test_search_matches_collection_search(client, collection):
    response = search(client, {"text": QUERY_TEXT}, k=7)
    hits = collection.search(Source("text", QUERY_TEXT), k=7)
    assert [hit["id"] for hit in response["hits"]] == [hit.id for hit in hits]
    assert [hit["score"] for hit in response["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert [hit["relevance"] for hit in response["hits"]] == pytest.approx([hit.relevance for hit in hits], abs=1e-4)
    assert response["relevance_threshold"] == 0.5


def test_weighted_and_negative_parts(client, collection, ids):
    parts = [{"text": QUERY_TEXT}, {"item": ids["image"], "weight": 0.5}, {"text": "a frog", "weight": -1}]
    response_hits = search(client, *parts, modalities=["audio"], k=5)["hits"]
    query = Query(
        (
            QueryPart(Source("text", QUERY_TEXT)),
            QueryPart(StoredItem(ids["image"]), 0.5),
            QueryPart(Source("text", "a frog"), -1),
        )
    )
    assert [hit["id"] for hit in response_hits] == [hit.id for hit in collection.search(query, ["audio"], 5)]
    assert all(len(hit["part_scores"]) == 3 for hit in response_hits)


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


def test_explanations_sum_to_score(client):
    for modality in ("image", "audio", "text"):
        parts = [{"text": "two red bells ring"}, {"text": "a frog", "weight": -0.5}]
        hit = search(client, *parts, modalities=[modality], k=1)["hits"][0]
        explanation = client.post("/v1/explain", json={"parts": parts, "item": hit["id"]}).json()
        assert [part["score"] for part in explanation["parts"]] == pytest.approx(hit["part_scores"], abs=1e-4)
        for part in explanation["parts"]:
            total = sum(map(sum, part["pair_contributions"]))
            assert total == pytest.approx(part["total"], abs=1e-3)
            assert part["total"] + part["residual"] == pytest.approx(part["score"], abs=1e-5)
            assert sum(part["query"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
            assert sum(part["hit"]["contributions"]) == pytest.approx(part["total"], abs=1e-3)
        words = explanation["parts"][0]["query"]
        assert [words["text"][slice(*map(int, location))] for location in words["locations"]] == [
            "two",
            "red",
            "bells",
            "ring",
        ]


def test_explanations_name_their_query_part(client, ids, tmp_path):
    video = save_video(tmp_path / "clip.mp4", seconds=2.0).read_bytes()
    request = {"parts": [{"file": "video"}, {"text": QUERY_TEXT}], "item": ids["image"]}
    explanation = client.post(
        "/v1/explain", data={"query": json.dumps(request)}, files={"video": ("clip.mp4", video)}
    ).json()
    parts = [(part["part_index"], part["query"]["modality"], part["weight"]) for part in explanation["parts"]]
    assert parts == [(0, "image", 0.5), (0, "audio", 0.5), (1, "text", 1.0)]


def test_explain_works_without_uploads(collection, ids):
    with run_server(create_app(collection, Limits(max_uploads=0))) as url:
        request = {"parts": [{"text": QUERY_TEXT}], "item": ids["image"]}
        assert httpx.post(f"{url}/v1/explain", json=request, timeout=30).status_code == 200


@pytest.mark.slow
def test_map_and_query_position(client):
    deadline = time.monotonic() + 60
    while (answer := client.get("/v1/map?column=label")).status_code == 202:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    result = answer.json()
    assert len(result["ids"]) == len(set(result["ids"])) == result["total"] == client.get("/healthz").json()["items"]
    assert all(0 <= location <= 1 for location in (*result["x"], *result["y"]))
    assert set(result["legend"]) >= {"bell", "frog"}
    position = client.post("/v1/map", json={"parts": [{"text": QUERY_TEXT}]}).json()
    positions = dict(zip(result["ids"], zip(result["x"], result["y"], strict=True), strict=True))
    neighbours = [positions[name] for name in position["neighbours"]]
    assert any((position["x"], position["y"]) == pytest.approx(location, abs=1e-3) for location in neighbours)


def test_query_position_is_weighted_medoid():
    positions = np.array([[0.1, 0.1], [0.12, 0.1], [0.1, 0.13], [0.9, 0.9], [0.88, 0.9]])
    assert _weighted_medoid(positions, np.ones(5)).tolist() in positions[:3].tolist()
    assert _weighted_medoid(positions, np.array([0.1, 0.1, 0.1, 2, 1])).tolist() == [0.9, 0.9]
