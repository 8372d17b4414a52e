"""Networks of the transformers library as encoders, against the library itself."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import have_identical_weights
from tests.encoders import tiny_models
from tests.encoders.conftest import BACKBONES, TEXTS
from triptych.checkpoint import load, save
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import CheckpointError, MediaError, RecipeError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.space import Space

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")


def build_encoder(folders, case, **settings):
    name, defaults = BACKBONES[case]
    return ENCODERS[name](model=str(folders[case]), **defaults | settings).eval()


@torch.inference_mode()
def parts_of(encoder, sources):
    """Return the real parts of each source, computed in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return [p[m] for p, m in zip(parts, mask, strict=True)]


def embeddings(encoder, sources):
    return F.normalize(torch.stack([p.mean(dim=0) for p in parts_of(encoder, sources)]), dim=1)


@pytest.mark.parametrize("case", BACKBONES)
def test_invariant_to_batch_and_order(case, folders, five_sources):
    encoder = build_encoder(folders, case)
    items = five_sources[encoder.modality]
    batched = embeddings(encoder, items)
    assert batched.shape == (5, encoder.feature_dim)
    separate = torch.cat([embeddings(encoder, [source]) for source in items])
    assert torch.allclose(batched, separate, atol=1e-6)
    assert torch.allclose(batched, embeddings(encoder, items[::-1]).flip(0), atol=1e-6)
    assert not torch.allclose(batched[0], batched[-1], atol=1e-3), "different sources are alike"


def load_reference_model(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, local_files_only=True).eval()


@torch.inference_mode()
def test_text_parts_equal_reference_hidden_states(folders, five_sources):
    from transformers import AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folders["bert"])(TEXTS, padding=True, return_tensors="pt")
    output = load_reference_model(folders["bert"])(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    for layer, states in ((-1, output.last_hidden_state), (1, output.hidden_states[1]), (0, output.hidden_states[0])):
        parts = parts_of(build_encoder(folders, "bert", layer=layer), five_sources["text"])
        for actual, expected, mask in zip(parts, states, real, strict=True):
            assert torch.allclose(actual, expected[mask], atol=1e-5)


@torch.inference_mode()
def test_image_parts_equal_reference_hidden_states(folders, five_sources):
    from transformers import AutoImageProcessor

    images = [Image.open(source.content) for source in five_sources["image"]]
    for case in ("vit", "convnext"):
        pixels = AutoImageProcessor.from_pretrained(folders[case], backend="pil")(images=images, return_tensors="pt")
        states = load_reference_model(folders[case])(**pixels).last_hidden_state
        parts = torch.stack(parts_of(build_encoder(folders, case), five_sources["image"]))
        if case == "convnext":  # a feature map: region (row, column) is part row · columns + column
            n, width, rows, columns = states.shape
            states = torch.stack([states[:, :, r, c] for r in range(rows) for c in range(columns)], dim=1)
            assert states.shape == (n, rows * columns, width)
        assert torch.allclose(parts, states, atol=1e-5)


@torch.inference_mode()
def test_audio_parts_equal_reference_hidden_states(folders, five_sources):
    from transformers import AutoFeatureExtractor

    from triptych.media import audio

    source = five_sources["audio"][2]
    for case, rate in (("wav2vec2", 8000), ("spectrogram_transformer", 16_000)):
        samples = audio.read(source.content, rate)
        inputs = AutoFeatureExtractor.from_pretrained(folders[case])(samples, sampling_rate=rate, return_tensors="pt")
        states = load_reference_model(folders[case])(**inputs).last_hidden_state[0]
        encoder = build_encoder(folders, case)
        assert torch.allclose(parts_of(encoder, [source])[0], states, atol=1e-5)


def test_unfrozen_network_gets_gradients(folders, five_sources):
    encoder = build_encoder(folders, "bert", frozen=False).train()
    parts, mask = encoder(*collate([encoder.prepare(source) for source in five_sources["text"]]))
    (parts[mask] ** 2).mean().backward()
    with_gradient = {name for name, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert {name for name, _ in encoder.named_parameters() if "pooler" not in name} == with_gradient
    assert encoder.extra_files() == {}


def test_loading_space_checks_frozen_network(folders, tmp_path):
    model_folder = tiny_models.bert(tmp_path / "model")
    overrides = [
        f"space.encoders.text={{name='hf_text', model='{model_folder}'}}",
        "space.encoders.image={name='image_cnn'}",
    ]
    space = Space(Recipe.load("damsm", overrides))
    save(space, tmp_path / "space.safetensors")
    assert have_identical_weights(load(tmp_path / "space.safetensors"), space)
    torch.manual_seed(1)
    tiny_models.bert(tmp_path / "model")
    with pytest.raises(CheckpointError, match="was trained with other weights or settings of HuggingFaceText"):
        load(tmp_path / "space.safetensors")


def test_invalid_settings_raise(folders, tmp_path):
    for name, settings, message in [
        ("hf_text", {}, "model is missing; set model to a folder"),
        ("hf_text", {"model": str(tmp_path / "nowhere")}, "no such folder"),
        ("hf_text", {"model": str(tmp_path)}, "no readable config.json in this folder"),
        ("hf_text", {"model": str(folders["vit"])}, "'vit' and takes pixel_values; need a model for text"),
        ("hf_image", {"model": str(folders["bert"])}, "'bert' and takes input_ids; need a model for image"),
        ("hf_image", {"model": str(folders["whisper"])}, "'whisper' and takes input_features; need a model for image"),
        ("hf_audio", {"model": str(folders["clip"])}, "'clip' and takes input_ids; need a model for audio"),
        ("hf_text", {"model": str(folders["bert"]), "layer": 9}, "layer = 9: must be between -3 and 2"),
        ("hf_text", {"model": str(folders["bert"]), "max_length": 0}, "max_length = 0: must be"),
        ("hf_audio", {"model": str(folders["whisper"]), "max_seconds": 3.0}, "max_seconds = 3: .* takes at most 2 s"),
        ("hf_audio", {"model": str(folders["wav2vec2"]), "max_seconds": 0.0}, "max_seconds = 0.0: must be"),
    ]:
        with pytest.raises(RecipeError, match=f"^{name}: .*{message}"):
            ENCODERS[name](**settings)
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        build_encoder(folders, "bert").prepare(Source("text", " \n"))
    assert "model" in (ENCODERS["hf_text"].unavailable_reason() or "")
