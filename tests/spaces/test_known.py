"""The table of known spaces, and our figures."""

import shlex
from pathlib import Path

from triptych.hub import MODEL_PREFIXES
from triptych.spaces import known
from triptych.spaces.known import KNOWN_SPACES, MEASUREMENTS, RECOMMENDED, find_known


def test_the_recommended_space_has_all_modalities():
    recommended = find_known(RECOMMENDED)
    assert recommended is not None
    assert recommended.modalities == ("image", "audio", "text")
    assert all(space.name.startswith(MODEL_PREFIXES) for space in KNOWN_SPACES)
    assert find_known("hf:nobody/nothing") is None


def test_every_figure_names_a_command_that_exists():
    root = Path(known.__file__).parents[2]
    for figure in (figure for figures in MEASUREMENTS.values() for figure in figures):
        words = shlex.split(figure.command)
        is_bench = words[:3] == ["python", "-m", "bench"] and (root / "bench" / f"{words[3]}.py").is_file()
        assert is_bench or words[0] == "triptych", figure.command
        assert 0 <= figure.percent <= 100
