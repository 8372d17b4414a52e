"""Synthetic data with exact annotations, for the demo, the tests and the studies.

`SyntheticConfig` is the configuration, `generate` writes the data, `read_annotations` reads the ground truth. `FACTORS`
lists all factors with their values and modalities; `phrases_for` returns the phrases that captions use for a value.
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
