"""A made world with known answers: the data of the demo and of the tests."""

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
