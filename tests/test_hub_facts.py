"""Facts about models on the hub, and downloads, with a small hub on loopback."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from triptych import hub

COMMIT = "b" * 40
FILES = {
    "config.json": b'{"model_type": "clip"}',
    "tokenizer.json": b"{}",
    "preprocessor_config.json": b"{}",
    "model.safetensors": bytes(100_000),
    "pytorch_model.bin": bytes(50),
}
DOWNLOAD = """
import sys
from triptych import hub
from triptych.errors import CheckpointError
from triptych.spaces.hub_cache import find_cached_folder
try:
    hub.download("me/clip")
except CheckpointError as error:
    print(error)
print(find_cached_folder("me/clip") is not None)
"""


@contextmanager
def serve_model(sent_fraction=1.0):
    """Serve the files of a model. Of the weights, only a fraction is sent before the connection is closed."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(is_head=True)

        def do_GET(self):
            self.answer(is_head=False)

        def answer(self, is_head):
            name = self.path.rpartition("/")[2]
            siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
            model = {"id": "me/clip", "sha": COMMIT, "siblings": siblings, "tags": [], "cardData": {"license": "mit"}}
            if self.path.startswith("/api/models/me/clip/tree"):
                content = json.dumps([{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in FILES.items()])
            else:
                content = FILES.get(name, json.dumps(model))
            content = content.encode() if isinstance(content, str) else content
            start = int(self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{name}"')
            self.end_headers()
            if not is_head:
                is_weights = name == "model.safetensors"
                self.wfile.write(content[start : int(len(content) * sent_fraction) if is_weights else None])
            self.close_connection = True

        def log_message(self, format, *args):  # noqa: A002 - the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_size_counts_only_the_files_that_are_downloaded(monkeypatch):
    with serve_model() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        expected = sum(len(content) for name, content in FILES.items() if not name.endswith(".bin"))
        assert hub.read_model_facts("me/clip", timeout=60) == hub.ModelFacts(expected, "mit")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert hub.read_model_facts("me/clip", timeout=60) is None


def test_a_hub_that_never_answers_counts_as_unreachable(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert hub.read_model_facts("me/clip", timeout=0.2) is None


def test_free_space_is_known_before_the_cache_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "a" / "b"))
    assert hub.free_cache_bytes() > 0


@pytest.mark.slow
def test_a_download_that_breaks_off_is_one_error_and_is_resumed(tmp_path):
    def download(address):
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", DOWNLOAD]
        result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return result.stdout.splitlines()

    with serve_model(sent_fraction=0.5) as address:
        *message, is_complete = download(address)
    assert message
    assert message[0].startswith("hf:me/clip: ")
    assert is_complete == "False"
    with serve_model() as address:
        assert download(address) == ["True"]
