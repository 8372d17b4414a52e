"""Draw docs/report.png, the report on the demo's run: make demo, then python docs/report.py (needs Chromium)."""

import sys
import tempfile
from pathlib import Path

from screenshots import save_sheet, take_screenshots

from triptych.data import manifest
from triptych.report import page, report_data


def main(demo: Path, data: Path) -> None:
    """Show the recalls in the wide window and the geometry in the narrow one."""
    report = report_data.collect_report_data(demo / "run", manifest.read(data))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(page.render_report(report), encoding="utf-8")
        sheet = take_screenshots(file.as_uri(), 1500, lambda shown: shown.evaluate("location.hash = '#geometry'"))
    save_sheet(sheet, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3] or ("demo", "demo/data")))
