"""Helpers for the tests of the page in Chromium."""

import shutil

import pytest

pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install playwright")
from playwright.sync_api import expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt install chromium")
CHROMIUM_ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
]  # fmt: skip
QUERY_STRING = "?text=two+red+bells"
expect.set_options(timeout=20_000)  # test machines may be busy


def wait_for_hits(page):
    expect(page.locator("#status")).to_contain_text("hits")
    return page.locator(".hit")
