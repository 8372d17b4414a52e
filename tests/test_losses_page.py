"""The Python blocks of docs/losses.md run, their training loops learn, and the names in its tables exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_distributed import run_torchrun
from triptych import losses
from triptych.objectives import OBJECTIVES

PAGE = Path(__file__).parent.parent / "docs" / "losses.md"
TEXT = PAGE.read_text()
SECTION = re.compile(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS: dict[str, str] = dict(SECTION.findall(TEXT))
REQUIREMENTS = {"Lightning": ["pytorch_lightning"], "Hugging Face Trainer": ["transformers", "accelerate"]}
SAVE_GRADIENTS = """
import os

if os.environ["RANK"] == "0":
    torch.save([value.detach(), gradients], {path!r})
"""


def test_the_page_has_a_block_for_each_use():
    assert len(BLOCKS) == TEXT.count("```python") == 7
    assert {"PyTorch", *REQUIREMENTS, "Image regions and words", "A score matrix"} < set(BLOCKS)


@pytest.mark.filterwarnings("default")  # warnings of the other libraries, such as the advice to use more workers
@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow) if t in REQUIREMENTS else t for t in BLOCKS])
def test_the_block_runs(title, tmp_path, monkeypatch):
    for module in REQUIREMENTS.get(title, []):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(BLOCKS[title], f"{PAGE.name}: {title}", "exec"), namespace)
    if title in {"PyTorch", *REQUIREMENTS}:
        history = namespace["history"]  # the loss of each step
        assert len(history) == 40
        assert history[-1] < 0.3 * history[0]


def test_the_tables_name_every_loss_and_valid_arguments():
    names = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(names) == sorted(objective.__name__ for objective in OBJECTIVES.values())
    calls = re.findall(r"`((?:InfoNCE|Sigmoid|Triplet)\([^.`]*(?:\.\d[^.`]*)*\))`", TEXT)
    assert len(calls) >= 7
    for call in calls:
        eval(call, vars(losses) | {"scale": 20.0, "a": torch.eye(3), "b": torch.eye(3)})


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    block, expected = BLOCKS["Several processes"], {}  # the names that the block defines
    exec(compile(block, PAGE.name, "exec"), expected)
    path = tmp_path / "gradients.pt"
    (tmp_path / "block.py").write_text(block + SAVE_GRADIENTS.format(path=str(path)))
    run_torchrun(tmp_path / "block.py")
    value, gradients = torch.load(path, weights_only=True)
    assert value.item() == pytest.approx(expected["value"].item(), rel=1e-5)
    assert gradients.keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        assert torch.allclose(gradients[name], gradient, atol=1e-6), name
