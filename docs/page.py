"""The pictures of the page in these docs (needs Chromium), after `make demo` and `python -m bench real`:

python docs/page.py demo/collection runs/real/collection
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from triptych.app.server import bind_socket, create_app
from triptych.interfaces import Modality, Source
from triptych.search.collection import Collection
from triptych.search.ranking import RELEVANT

HERE = Path(__file__).parent
KINDS: tuple[Modality, ...] = ("image", "audio")
SHORT = range(40, 75)  # characters of a caption that fits the box
LARGEST = 300_000  # bytes of one picture


def main(made: str = "demo/collection", real: str = "") -> None:
    """Look at the demo's collection, and at one of real files: of that only at its sounds and its map."""
    collection = Collection.open(made)
    words, thing = _answered(collection)
    with _served(collection) as browser:
        page = browser()
        _search(page, words)
        _why(page, words, thing)
        _map(page, words)
        _dark(browser(color_scheme="dark"), words)
        _search(browser(viewport={"width": 390, "height": 844}, device_scale_factor=1.5), words, "page-phone")
    if real:
        with _served(Collection.open(real)) as browser:
            page = browser()
            _sounds(page)
            _map(page, "a dog", "page-real-map", "")


@contextmanager
def _served(collection: Collection) -> Iterator[Callable[..., Page]]:
    """New pages of Chromium, at a server of the collection that lives as long."""
    with bind_socket("127.0.0.1", 0) as at, sync_playwright() as playwright:
        server = uvicorn.Server(uvicorn.Config(create_app(collection), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        address = f"http://127.0.0.1:{at.getsockname()[1]}/"
        size = {"width": 1280, "height": 900}
        yield lambda **options: browser.new_page(**{"base_url": address, "viewport": size, **options})
        browser.close()
        server.should_exit = True
        thread.join()


def _answered(collection: Collection) -> tuple[str, str]:
    """The first short caption whose own picture and sound are found first, and the word in it for what sounds."""
    for entry in collection.entries():
        words, thing = entry.source.content, "".join(entry.columns.get("label", ()))
        if not isinstance(words, str) or len(words) not in SHORT or f" {thing}" not in words:
            continue
        first = [collection.search(Source("text", words), [kind], k=1)[0] for kind in KINDS]
        if all(words in hit.captions and hit.relevance >= RELEVANT for hit in first):
            return words, thing
    sys.exit("no short caption finds both its picture and its sound first; train the demo's space in full")


def _search(page: Page, words: str, name: str = "page-search") -> None:
    page.goto(f"?text={words}&modality=image&modality=audio")
    page.locator(".hit").first.wait_for()
    page.keyboard.press("Escape")
    _save(page, name)


def _why(page: Page, words: str, thing: str) -> None:
    page.goto(f"?text={words}&modality=image")
    page.locator(".explain-button").first.click()
    page.locator("#explanation .score").wait_for()
    page.locator(".word", has_text=thing).hover()
    _save(page, "page-why")


def _sounds(page: Page) -> None:
    page.goto("?text=waves on a beach&modality=audio")
    page.locator(".hit").first.wait_for()
    for swap in page.locator(".toggle-view").all()[::2]:
        swap.click()
    page.evaluate("scrollTo(0, 0)")
    _save(page, "page-real-sounds")


def _map(page: Page, words: str, name: str = "page-map", colour: str = "label") -> None:
    page.goto(f"?tab=map&colour={colour}&text={words}")
    page.locator(".map-legend li").first.wait_for(timeout=120_000)
    page.wait_for_load_state("networkidle")
    _save(page, name)


def _dark(page: Page, words: str) -> None:
    page.goto(f"?text={words}&text=clocks&weight=-0.5&modality=audio&modality=image&view=list")
    page.locator(".hit").first.wait_for()
    page.locator(".toggle-view").first.click()
    page.evaluate("scrollTo(0, 0)")
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


main(*sys.argv[1:3])
