"""The application as a whole: OpenAPI schema and tokens."""

from triptych.app.server import make_token


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


def test_token_is_required_only_beyond_loopback():
    assert make_token("127.0.0.1") is make_token("localhost") is make_token("::1") is None
    tokens = {make_token("0.0.0.0"), make_token("192.168.1.5"), make_token("::"), make_token("myhost")}
    assert len(tokens) == 4
    assert all(len(token or "") >= 40 for token in tokens)
