"""Routes for the report, the review page, health and metrics."""

import re


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
