"""The `triptych serve` command."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from triptych.app import cli
from triptych.errors import CollectionError


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
        match = re.search(r"(\d+) items at http://0\.0\.0\.0:(\d+)/\?token=(\S+)", line)
        assert match, line
        assert int(match[1]) == len(collection)
        url = f"http://127.0.0.1:{match[2]}/v1/collection"
        answer = httpx.get(url, headers={"Authorization": f"Bearer {match[3]}"}, timeout=30)
        assert answer.json()["items"] == len(collection)
        assert httpx.get(url).status_code == 401
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert "Traceback" not in errors
        assert "every request needs this token" in errors
        assert match[3] not in errors
    finally:
        process.kill()
        process.communicate()
