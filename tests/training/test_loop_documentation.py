"""The examples of docs/python-training.md run, in order, beside a manifest pairs.csv."""

import re
import shutil
from pathlib import Path

import pytest

from triptych.encoders import ENCODERS
from triptych.encoders.efficientnet_lite import EfficientNetLite0
from triptych.encoders.minilm import MiniLM

PAGE = Path(__file__).parents[2] / "docs" / "python-training.md"


@pytest.mark.slow
def test_examples_of_the_documentation(synthetic_manifest, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas", reason="needs pandas")
    pytest.importorskip("tensorboard", reason="needs TensorBoard")
    folder = tmp_path / "work"
    shutil.copytree(synthetic_manifest.parent, folder)
    (folder / synthetic_manifest.name).rename(folder / "pairs.csv")
    monkeypatch.chdir(folder)
    audio_encoders = (ENCODERS["yamnet"], ENCODERS["soundnet"])
    can_audit = not (EfficientNetLite0.unavailable_reason() or MiniLM.unavailable_reason())
    can_audit &= any(not encoder.unavailable_reason() for encoder in audio_encoders)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 6
    namespace = {}
    for example in examples:
        if can_audit or "triptych.audit" not in example:
            exec(compile(example, str(PAGE), "exec"), namespace)
    printed = capsys.readouterr().out
    assert "text → image" in printed
    assert "not separable" in printed or "is better" in printed
    assert (folder / "runs/memory/data/manifest.parquet").is_file()
    assert (folder / "runs/logged/tensorboard").is_dir()
