"""Synthetic data with exact annotations, for the demo, the tests and the studies.

`SyntheticConfig` says what to generate, `generate` writes it, `read_annotations` reads the ground truth. `FACTORS` has
all factors with their values and modalities; `phrases_for` gives the phrases that captions use for a value.
"""

from triptych.data.synthetic.annotations import SceneAnnotation, read_annotations
from triptych.data.synthetic.captions import phrases_for
from triptych.data.synthetic.generator import PRESETS, DifficultySettings, SyntheticConfig, generate
from triptych.data.synthetic.scenes import FACTORS

__all__ = [
    "FACTORS",
    "PRESETS",
    "DifficultySettings",
    "SceneAnnotation",
    "SyntheticConfig",
    "generate",
    "phrases_for",
    "read_annotations",
]
