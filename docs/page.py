"""Take the screenshots of the web page in these docs, after `make demo` and `python -m bench real_collection`:

python docs/page.py demo/collection runs/real/collection (needs Chromium)
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
from triptych.search.ranking import RELEVANCE_THRESHOLD

FOLDER = Path(__file__).parent
MODALITIES: tuple[Modality, ...] = ("image", "audio")
CAPTION_LENGTHS = range(40, 75)  # characters that fit the search box
MAX_BYTES = 300_000  # of a screenshot


def main(demo: str = "demo/collection", real: str = "") -> None:
    """Take screenshots of the demo's collection, and of the audio and the map of a collection of real files."""
    collection = Collection(demo)
    text, label = _find_example(collection)
    with _serve(collection) as open_page:
        page = open_page()
        _show_search(page, text)
        _show_explanation(page, text, label)
        _show_map(page, text)
        _show_dark_theme(open_page(color_scheme="dark"), text)
        _show_search(open_page(viewport={"width": 390, "height": 844}, device_scale_factor=1.5), text, "page-phone")
    if real:
        with _serve(Collection(real)) as open_page:
            page = open_page()
            _show_audio(page)
            _show_map(page, "a dog", "page-real-map", "")


@contextmanager
def _serve(collection: Collection) -> Iterator[Callable[..., Page]]:
    """Serve a collection during the block; yield a function that opens a page in Chromium."""
    with bind_socket("127.0.0.1", 0) as socket, sync_playwright() as playwright:
        server = uvicorn.Server(uvicorn.Config(create_app(collection), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        url = f"http://127.0.0.1:{socket.getsockname()[1]}/"
        size = {"width": 1280, "height": 900}
        yield lambda **options: browser.new_page(**{"base_url": url, "viewport": size, **options})
        browser.close()
        server.should_exit = True
        thread.join()


def _find_example(collection: Collection) -> tuple[str, str]:
    """Return the first short caption whose own image and audio are the first hits, and the label in it."""
    for item in collection.list_items():
        text, label = item.source.content, "".join(item.columns.get("label", ()))
        if not isinstance(text, str) or len(text) not in CAPTION_LENGTHS or f" {label}" not in text:
            continue
        hits = [collection.search(Source("text", text), [modality], k=1)[0] for modality in MODALITIES]
        if all(text in hit.item.captions and hit.relevance >= RELEVANCE_THRESHOLD for hit in hits):
            return text, label
    sys.exit("no short caption has its own image and audio as first hits; train the demo's space completely")


def _show_search(page: Page, text: str, name: str = "page-search") -> None:
    page.goto(f"?text={text}&modality=image&modality=audio")
    page.locator(".hit").first.wait_for()
    page.keyboard.press("Escape")
    _save(page, name)


def _show_explanation(page: Page, text: str, label: str) -> None:
    page.goto(f"?text={text}&modality=image")
    page.locator(".explain-button").first.click()
    page.locator("#explanation .score").wait_for()
    page.locator(".word", has_text=label).hover()
    _save(page, "page-explanation")


def _show_audio(page: Page) -> None:
    page.goto("?text=waves on a beach&modality=audio")
    page.locator(".hit").first.wait_for()
    for toggle in page.locator(".toggle-view").all()[::2]:
        toggle.click()
    page.evaluate("scrollTo(0, 0)")
    _save(page, "page-real-audio")


def _show_map(page: Page, text: str, name: str = "page-map", colour: str = "label") -> None:
    page.goto(f"?tab=map&colour={colour}&text={text}")
    page.locator(".map-legend li").first.wait_for(timeout=120_000)
    page.wait_for_load_state("networkidle")
    _save(page, name)


def _show_dark_theme(page: Page, text: str) -> None:
    page.goto(f"?text={text}&text=clocks&weight=-0.5&modality=audio&modality=image&view=list")
    page.locator(".hit").first.wait_for()
    page.locator(".toggle-view").first.click()
    page.evaluate("scrollTo(0, 0)")
    _save(page, "page-dark")


def _save(page: Page, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(700)
    file = FOLDER / f"{name}.png"
    page.screenshot(path=file)
    # 256 colours are sufficient and take a third of the bytes.
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    if file.stat().st_size > MAX_BYTES:
        sys.exit(f"{file}: {file.stat().st_size} bytes; at most {MAX_BYTES}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
