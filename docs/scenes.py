"""Draw docs/scenes.png, a few scenes of the synthetic data: python docs/scenes.py"""

import tempfile
import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from triptych.data import manifest
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.media import audio

NUM_SCENES, COLUMNS, SIDE, GAP, TEXT_HEIGHT = 8, 4, 192, 16, 92
SPECTROGRAM_HEIGHT = 80


def spectrogram(path: Path) -> Image.Image:
    """Return the log-mel spectrogram of a file, low frequencies at the bottom."""
    levels = audio.log_mel_spectrogram(audio.read(path, 16_000), 16_000, 64, 1024, 256).numpy()
    grey = np.clip((levels.T[::-1] + 60) / 70, 0, 1)
    colours = np.stack([0.98 - 0.85 * grey, 0.98 - 0.6 * grey, 0.99 - 0.35 * grey], axis=2)
    return Image.fromarray((255 * colours).astype(np.uint8)).resize(
        (SIDE, SPECTROGRAM_HEIGHT), Image.Resampling.BILINEAR
    )


def main() -> None:
    """Generate a small data set and draw its first scenes."""
    cell = (SIDE + GAP, SIDE + SPECTROGRAM_HEIGHT + TEXT_HEIGHT + GAP)
    sheet = Image.new("RGB", (COLUMNS * cell[0] + GAP, NUM_SCENES // COLUMNS * cell[1] + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    with tempfile.TemporaryDirectory() as folder:
        rows = manifest.read(
            generate(SyntheticConfig(scenes=40, seed=5, image_size=96), Path(folder) / "synthetic")
        ).rows
        for i, row in enumerate(rows[:NUM_SCENES]):
            x, y = GAP + i % COLUMNS * cell[0], GAP + i // COLUMNS * cell[1]
            if row.image and row.audio:
                sheet.paste(Image.open(row.image).resize((SIDE, SIDE), Image.Resampling.LANCZOS), (x, y))
                sheet.paste(spectrogram(row.audio), (x, y + SIDE + 4))
            lines = textwrap.wrap(row.texts[0], 29)[:5]
            pen.multiline_text((x, y + SIDE + SPECTROGRAM_HEIGHT + 8), "\n".join(lines), "#333", font, spacing=3)
    sheet.quantize(128).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
