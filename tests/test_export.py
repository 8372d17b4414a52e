"""ONNX export: graphs match the space for other batch sizes and lengths; failures are explained."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import collate, sources_of
from triptych.encoders import ENCODERS
from triptych.errors import UsageError
from triptych.export import export_onnx
from triptych.interfaces import Modality, Source

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (triptych[export])")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (triptych[export])")


def test_exported_graphs_match_the_space(run_dir, tiny_recipe, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run_dir), "--onnx", "-o", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = {entry["modality"]: entry for entry in json.loads(result.stdout)}
    space = load(run_dir)
    rows = manifest.read(tiny_recipe.data.manifest).rows
    for modality in space.modalities:
        one = report[modality]
        assert not one["problem"]
        assert one["max_cosine_distance"] < 1e-5
        assert one["num_items"] >= 8
        assert one["time_ratio_range"][0] <= one["time_ratio"] <= one["time_ratio_range"][1]
        session = onnxruntime.InferenceSession(str(tmp_path / one["file"]))
        for count in (1, 3):  # other batch sizes and lengths than at export
            sources = [s for row in rows[:count] for s in sources_of(row, modality)][:count]
            inputs, mask = collate([space.encoder(modality).prepare(s) for s in sources])
            if modality != "image":
                inputs, mask = torch.cat([inputs, torch.zeros_like(inputs)], 1), torch.cat([mask, mask & False], 1)
            if modality == "text":
                inputs, mask = inputs[:, :60], mask[:, :60]
            feed = {"inputs": inputs.numpy(), "mask": mask.numpy()}
            input_names = {i.name for i in session.get_inputs()}
            embeddings = session.run(None, {k: v for k, v in feed.items() if k in input_names})[0]
            expected = space.embed(sources, modality).features.embedding.numpy()
            assert np.abs(np.asarray(embeddings) - expected).max() < 1e-5, f"{modality}, {count}"
    assert json.loads((tmp_path / "report.json").read_text()) == list(report.values())
    assert (tmp_path / "text_tokenizer.json").exists()


def test_a_failed_export_gives_a_reason_and_leaves_no_file(run_dir, tmp_path, monkeypatch):
    space = load(run_dir)
    sources: dict[Modality, list[Source]] = {"text": [Source("text", "a bell"), Source("text", "a drum")]}

    def forward_through_numpy(inputs, mask):
        return torch.from_numpy(inputs.detach().numpy()), mask

    monkeypatch.setattr(space.encoder("text"), "forward", forward_through_numpy)
    results = {result.modality: result for result in export_onnx(space, sources, tmp_path, show_progress=False)}
    assert results["text"].problem
    assert "needs two readable examples of image; got 0 of 0" in results["image"].problem
    assert [p.name for p in tmp_path.glob("*.onnx")] == []
    monkeypatch.setattr("triptych.devices.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'triptych\[export\]'"):
        export_onnx(space, sources, tmp_path, show_progress=False)


def test_export_requires_a_format(run_dir, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run_dir)])
    assert isinstance(result.exception, UsageError)
    assert "--onnx" in str(result.exception)


@pytest.mark.parametrize("name", ["minilm", "yamnet", "efficientat_mn04", "efficientnet_lite0"])
def test_the_export_path_of_an_encoder_matches_its_training_path(name, monkeypatch):
    """The export path also computes padding; all other parts are equal."""
    cls = ENCODERS[name]
    if reason := cls.unavailable_reason():
        pytest.skip(reason)
    encoder = cls().eval()
    torch.manual_seed(0)
    shapes = {"minilm": (3, 9), "yamnet": (3, 4, 96, 64), "efficientat_mn04": (5, 90, 128)}
    inputs = torch.randint(0, 200, shapes.get(name, (5, 224, 224, 3)))
    inputs = inputs.float() / 100 if cls.modality == "audio" else inputs
    inputs = inputs.to(torch.uint8) if cls.modality == "image" else inputs
    mask = torch.ones(inputs.shape[:2], dtype=torch.bool)
    if cls.modality != "image":
        mask[1, 2:] = False
    with torch.inference_mode():
        parts, parts_mask = encoder(inputs, mask)
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
        export_parts, export_mask = encoder(inputs, mask)
    assert torch.equal(parts_mask, export_mask)
    assert torch.allclose(parts[parts_mask], export_parts[parts_mask], atol=1e-5)
