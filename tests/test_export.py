"""An exported graph gives the vectors of its space, for other batches and lengths too, or says why there is none."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.checkpoint import load
from triptych.contracts import Modality, Source
from triptych.data import manifest
from triptych.data.loader import collate, sources_of
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.export import export_onnx

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (triptych[export])")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (triptych[export])")


def test_graphs_of_every_modality_agree_with_the_space_they_come_from(run, quick, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run), "--onnx", "-o", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = {one["modality"]: one for one in json.loads(result.stdout)}
    space = load(run)
    rows = manifest.read(quick.data.manifest).rows
    for modality in space.modalities:
        one = report[modality]
        assert not one["problem"]
        assert one["drift"] < 1e-5
        assert one["items"] >= 8
        assert one["spread"][0] <= one["ratio"] <= one["spread"][1]
        session = onnxruntime.InferenceSession(str(tmp_path / one["file"]))
        for count in (1, 3):  # batches and lengths the exporter has not seen
            sources = [s for row in rows[:count] for s in sources_of(row, modality)][:count]
            inputs, mask = collate([space.encoder(modality).prepare(s) for s in sources])
            if modality != "image":
                inputs, mask = torch.cat([inputs, torch.zeros_like(inputs)], 1), torch.cat([mask, mask & False], 1)
            if modality == "text":
                inputs, mask = inputs[:, :60], mask[:, :60]
            given = {"inputs": inputs.numpy(), "mask": mask.numpy()}
            wanted = {i.name for i in session.get_inputs()}
            found = session.run(None, {k: v for k, v in given.items() if k in wanted})[0]
            expected = space.embed(sources, modality).features.embedding.numpy()
            assert np.abs(np.asarray(found) - expected).max() < 1e-5, f"{modality}, {count}"
    assert json.loads((tmp_path / "report.json").read_text()) == list(report.values())
    assert (tmp_path / "text_tokenizer.json").exists()


def test_what_cannot_be_exported_says_why_and_leaves_no_file(run, tmp_path, monkeypatch):
    space = load(run)
    sources: dict[Modality, list[Source]] = {"text": [Source("text", "a bell"), Source("text", "a drum")]}

    def unsayable(inputs, mask):
        return torch.from_numpy(inputs.detach().numpy()), mask

    monkeypatch.setattr(space.encoder("text"), "forward", unsayable)
    found = {one.modality: one for one in export_onnx(space, sources, tmp_path, show=False)}
    assert found["text"].problem
    assert "needs two readable examples of image; 0 of 0" in found["image"].problem
    assert [p.name for p in tmp_path.glob("*.onnx")] == []
    monkeypatch.setattr("triptych.export.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'triptych\[export\]'"):
        export_onnx(space, sources, tmp_path, show=False)


def test_a_missing_manifest_and_form_are_named(run, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run)])
    assert isinstance(result.exception, UsageError)
    assert "--onnx" in str(result.exception)


@pytest.mark.parametrize("name", ["minilm", "yamnet", "efficientnet_lite0"])
def test_the_way_of_a_graph_gives_the_numbers_of_the_way_of_training(name, monkeypatch):
    """A graph computes padding too; where parts are real, the numbers are the same."""
    cls = ENCODERS[name]
    if lack := cls.missing():
        pytest.skip(lack)
    encoder = cls().eval()
    torch.manual_seed(0)
    shapes = {"minilm": (3, 9), "yamnet": (3, 4, 96, 64), "efficientnet_lite0": (5, 224, 224, 3)}
    inputs = torch.randint(0, 200, shapes[name])
    inputs = inputs.float() / 100 if name == "yamnet" else inputs.to(torch.uint8) if name[0] == "e" else inputs
    mask = torch.ones(inputs.shape[:2], dtype=torch.bool)
    if name != "efficientnet_lite0":
        mask[1, 2:] = False
    with torch.inference_mode():
        parts, real = encoder(inputs, mask)
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
        others, same = encoder(inputs, mask)
    assert torch.equal(real, same)
    assert torch.allclose(parts[real], others[real], atol=1e-5)
