"""Draws docs/report.png, the report on the demo's run as a browser shows it: make demo, then python docs/report.py"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from triptych.data import manifest
from triptych.report import page, report_data

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDE, NARROW, HEIGHT, GAP = 1180, 390, 1500, 24


def main(demo: Path) -> None:
    """A wide screen by day and a phone by night, side by side."""
    found = report_data.gather(demo / "run", manifest.read(demo / "world"))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(page.render_report(found), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        sheet = Image.new("RGB", (WIDE + GAP + NARROW, HEIGHT), "white")
        for width, scheme, place, part in ((WIDE, "light", 0, "recall"), (NARROW, "dark", WIDE + GAP, "geometry")):
            context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            shown = context.new_page()
            shown.goto(file.as_uri() + (f"#{part}" if part != "recall" else ""))
            shown.wait_for_timeout(1500)
            sheet.paste(Image.open(io.BytesIO(shown.screenshot())), (place, 0))
        browser.close()
    sheet.quantize(224).save(Path(__file__).with_suffix(".png"), optimize=True)


main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
