"""The pictures of the page in these docs: python docs/page.py, after `make demo` (needs Chromium)."""

import shutil
import sys
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from triptych.app.server import application, bound
from triptych.search.collection import Collection

HERE = Path(__file__).parent
WORDS = "a pair of scarlet bees, low down, droning rapidly late"
LARGEST = 300_000  # bytes of one picture


def main(place: str = "demo/collection") -> None:
    """Serve the demo's collection for a moment, and look at it."""
    with bound("127.0.0.1", 0) as at:
        server = uvicorn.Server(uvicorn.Config(application(Collection.open(place)), log_level="warning"))
        threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            address = f"http://127.0.0.1:{at.getsockname()[1]}/"
            page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
            _search(page)
            _why(page)
            _map(page)
            page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 900}, color_scheme="dark")
            _dark(page)
            browser.close()
        server.should_exit = True


def _search(page: Page) -> None:
    page.goto(f"?text={WORDS}&want=image&want=audio")
    page.locator(".hit").first.wait_for()
    page.keyboard.press("Escape")
    _save(page, "page-search")


def _why(page: Page) -> None:
    page.goto(f"?text={WORDS}&want=image")
    page.locator(".why-button").first.click()
    page.locator("#why .score").wait_for()
    page.locator(".word", has_text="bees").hover()
    _save(page, "page-why")


def _map(page: Page) -> None:
    page.goto("?tab=map&colour=label&text=a green frog croaks")
    page.locator(".map-legend li").first.wait_for(timeout=120_000)
    page.wait_for_load_state("networkidle")
    _save(page, "page-map")


def _dark(page: Page) -> None:
    page.goto("?text=a blue bird sings&text=drums&weight=-0.5&want=audio&want=image&view=list")
    page.locator(".hit").first.wait_for()
    page.locator(".swap").first.click()
    _save(page, "page-dark")


def _save(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(700)
    file = HERE / f"{name}.png"
    page.screenshot(path=file)
    # 256 colours are enough for a page, and a third of the bytes.
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    if file.stat().st_size > LARGEST:
        sys.exit(f"{file}: {file.stat().st_size} bytes; at most {LARGEST}")


main(*sys.argv[1:2])
