"""Draw docs/review.png, the review page of an audit: python docs/review.py [FOLDER] (needs Chromium).

The data is a small synthetic data set in which a tenth of the rows have the captions of another row.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page
from screenshots import save_sheet, take_screenshots

from triptych.auditing.audit import REVIEW_FILE, audit
from triptych.data.noise_injection import inject_noise
from triptych.data.synthetic import SyntheticConfig, generate

CONFIG = SyntheticConfig(scenes=300, captions=2, max_objects=1, image_size=128, seconds=1.5)


def main(folder: Path) -> None:
    """Audit the data; the narrow window has some decisions."""
    data = folder / "synthetic"
    if not data.is_dir():
        generate(CONFIG, data)
    noisy_manifest = inject_noise(data / "manifest.csv", data / "noisy.csv", 0.1)[0].path
    audit(noisy_manifest, folder / "audit", allow_outside=True)
    sheet = take_screenshots((folder / "audit" / REVIEW_FILE).as_uri(), 800, decide)
    save_sheet(sheet, Path(__file__).with_suffix(".png"))


def decide(page: Page) -> None:
    """Decide on the first rows by keyboard."""
    for key in "srk":
        page.keyboard.press(key)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp_folder:
            main(Path(temp_folder))
