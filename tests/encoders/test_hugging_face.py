"""Loading of checkpoints of the transformers library."""

import json

import pytest
import torch

from tests.encoders import tiny_models
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError

pytestmark = pytest.mark.slow


pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")


def test_pickled_weights_raise(folders, tmp_path):
    folder = tiny_models.bert(tmp_path / "old")
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match=r"no \*.safetensors in the folder; found: .*pytorch_model.bin.*can run code"):
        ENCODERS["hf_text"](model=str(folder))


def test_remote_code_is_not_run(tmp_path):
    folder = tiny_models.bert(tmp_path / "foreign")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('ran')")
    with pytest.raises(RecipeError, match=r"no readable config.json"):
        ENCODERS["hf_text"](model=str(folder))


def test_missing_weights_raise(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny_models.bert(tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    incomplete = {name: value for name, value in weights.items() if "layer.1." not in name and "pooler" not in name}
    save_file(incomplete, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=r"\d+ weights are missing from the file, such as encoder.layer.1."):
        ENCODERS["hf_text"](model=str(folder))
