"""A small Hugging Face hub on loopback: it creates repositories, accepts commits, and serves the committed files."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Flask, Response, jsonify, request
from werkzeug.serving import make_server

COMMIT = "a" * 40


@contextmanager
def hub_server(allowed_token: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the address of the hub, and the files that were committed to its only repository."""
    app, files = Flask("hub"), dict[str, bytes]()

    @app.before_request
    def check_token():
        if request.method == "POST" and request.headers.get("authorization") != f"Bearer {allowed_token}":
            return jsonify(error="Invalid credentials"), 401
        return None

    @app.post("/api/repos/create")
    def create_repository():
        name = f"{request.get_json()['organization']}/{request.get_json()['name']}"
        return jsonify(url=f"{request.host_url}{name}", name=name, id=name)

    @app.post("/api/validate-yaml")
    def validate_model_card():
        return jsonify(errors=[], warnings=[])

    @app.post("/api/models/me/space/preupload/main")
    def prepare_upload():
        names = [file["path"] for file in request.get_json()["files"]]
        return jsonify(files=[{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names])

    @app.post("/api/models/me/space/commit/main")
    def commit():
        for line in map(json.loads, request.get_data().splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        address = f"{request.host_url}me/space/commit/{COMMIT}"
        return jsonify(success=True, commitOid=COMMIT, commitUrl=address, hookOutput="")

    @app.get("/api/models/me/space/revision/main")
    @app.get("/api/models/me/space")
    def describe_repository():
        siblings = [{"rfilename": name} for name in files]
        return jsonify(id="me/space", modelId="me/space", sha=COMMIT, siblings=siblings, private=False, tags=[])

    @app.get(f"/api/models/me/space/tree/{COMMIT}")
    def list_files():
        return jsonify([{"type": "file", "path": n, "size": len(data), "oid": n} for n, data in files.items()])

    @app.get(f"/me/space/resolve/{COMMIT}/<name>")
    def download(name):
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{name}"', "Content-Length": str(len(files[name]))}
        return Response(files[name], headers=headers)

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}", files
    finally:
        server.shutdown()
        thread.join()
