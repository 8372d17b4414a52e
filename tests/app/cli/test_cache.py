"""The `triptych cache` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_cache_size_and_clear(tmp_path, monkeypatch):
    from tests.data.cached_images import make_encoder, make_images
    from triptych.data.cache import Cache
    from triptych.data.features import compute_or_load

    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    compute_or_load(make_encoder(), make_images(tmp_path / "files", 3), Cache.default())
    summary = json.loads(triptych("cache", "--json").stdout)
    assert summary["folder"] == str(tmp_path / "cache")
    assert [store["items"] for store in summary["stores"]] == [3]
    assert "3 items" in triptych("cache").stdout
    assert json.loads(triptych("cache", "--clear", "--json").stdout)["stores"] == []
