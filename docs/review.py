"""Draws docs/review.png, an audit's review page as a browser shows it: python docs/review.py (needs Chromium).

The pairs are those of a small made world, in which every tenth row has the captions of another.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from triptych.audit.audit import PAGE, audit
from triptych.data.noise_injection import damage
from triptych.data.synthetic import World, make

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDE, NARROW, HEIGHT, GAP = 1180, 390, 800, 24
WORLD = World(scenes=300, captions=2, actors=1, size=128, seconds=1.5)


def main(folder: Path) -> None:
    """Audit the world, then look: a wide screen by day, and a phone by night after some decisions, side by side."""
    if not (folder / "world").is_dir():
        make(WORLD, folder / "world")
    wrong = damage(folder / "world" / "manifest.csv", folder / "world" / "wrong.csv", 0.1)[0].path
    audit(wrong, folder / "audit", allow_outside=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        sheet = Image.new("RGB", (WIDE + GAP + NARROW, HEIGHT), "white")
        for width, scheme, place, keys in ((WIDE, "light", 0, ""), (NARROW, "dark", WIDE + GAP, "srk")):
            context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            shown = context.new_page()
            shown.goto((folder / "audit" / PAGE).as_uri())
            _settle(shown)
            for key in keys:
                shown.keyboard.press(key)
            _settle(shown)
            sheet.paste(Image.open(io.BytesIO(shown.screenshot())), (place, 0))
        browser.close()
    few = sheet.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # a quarter of the bytes
    few.save(Path(__file__).with_suffix(".png"), optimize=True)


def _settle(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


if len(sys.argv) > 1:
    main(Path(sys.argv[1]))
else:
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
