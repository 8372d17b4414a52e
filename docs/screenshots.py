"""Screenshots of an HTML file: a wide light and a narrow dark window, side by side (needs Chromium)."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDE, NARROW, GAP = 1180, 390, 24  # pixels


def take_screenshots(url: str, height: int, prepare_narrow: Callable[[Page], None]) -> Image.Image:
    """Return both windows on one sheet; `prepare_narrow` acts on the narrow page before its screenshot."""
    sheet = Image.new("RGB", (WIDE + GAP + NARROW, height), "white")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_OPTIONS)
        for is_wide in (True, False):
            page = browser.new_page(
                viewport={"width": WIDE if is_wide else NARROW, "height": height},
                color_scheme="light" if is_wide else "dark",
            )
            page.goto(url)
            _wait(page)
            if not is_wide:
                prepare_narrow(page)
                _wait(page)
            sheet.paste(Image.open(io.BytesIO(page.screenshot())), (0 if is_wide else WIDE + GAP, 0))
        browser.close()
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write the sheet with 256 colours, which takes a quarter of the bytes."""
    sheet.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def _wait(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)
