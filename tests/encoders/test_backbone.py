"""Networks of the transformers library as encoders: their own outputs, whatever stands beside an item."""

import json
import math

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import have_identical_weights
from tests.encoders import tiny_models
from triptych.checkpoint import load, save
from triptych.data.loader import collate, prepare_sources
from triptych.encoders import ENCODERS
from triptych.errors import CheckpointError, MediaError, RecipeError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.space import Space

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")

TEXTS = ["a dog barks", "two red bells", "three blue birds sing slowly on the roof", "rain", "the bell rings low"]
CASES = {
    "bert": ("hf_text", {}),
    "roberta": ("hf_text", {}),
    "t5": ("hf_text", {}),
    "clip": ("hf_text", {}),
    "vit": ("hf_image", {}),
    "convnext": ("hf_image", {}),
    "siglip": ("hf_image", {}),
    "wav2vec2": ("hf_audio", {"max_seconds": 0.8}),
    "spectrogram_transformer": ("hf_audio", {"max_seconds": 0.6}),
    "whisper": ("hf_audio", {"max_seconds": 1.5}),
    "clap": ("hf_audio", {"max_seconds": 0.8}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every tiny model, saved once, by name."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    return {name: getattr(tiny_models, name)(root / name) for name in CASES}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Five sources of each modality, of different lengths and sizes."""
    folder, rng = tmp_path_factory.mktemp("media"), np.random.default_rng(0)
    by_modality = {"text": [Source("text", caption) for caption in TEXTS], "audio": [], "image": []}
    for i in range(5):
        soundfile.write(folder / f"{i}.wav", rng.normal(0, 0.1, 2500 + 3777 * (i // 2)), 16_000)
        by_modality["audio"].append(Source("audio", folder / f"{i}.wav"))
        Image.fromarray(rng.integers(0, 255, (40 + 9 * i, 60, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        by_modality["image"].append(Source("image", folder / f"{i}.png"))
    return by_modality


def build_encoder(folders, case, **settings):
    name, defaults = CASES[case]
    return ENCODERS[name](model=str(folders[case]), **defaults | settings).eval()


@torch.inference_mode()
def parts_of(encoder, sources):
    """Each source's real parts, all in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return [p[m] for p, m in zip(parts, mask, strict=True)]


def embeddings(encoder, sources):
    return F.normalize(torch.stack([p.mean(dim=0) for p in parts_of(encoder, sources)]), dim=1)


@pytest.mark.parametrize("case", CASES)
def test_invariant_to_batch_and_order(case, folders, sources):
    encoder = build_encoder(folders, case)
    items = sources[encoder.modality]
    batched = embeddings(encoder, items)
    assert batched.shape == (5, encoder.feature_dim)
    separate = torch.cat([embeddings(encoder, [source]) for source in items])
    assert torch.allclose(batched, separate, atol=1e-6)
    assert torch.allclose(batched, embeddings(encoder, items[::-1]).flip(0), atol=1e-6)
    assert not torch.allclose(batched[0], batched[-1], atol=1e-3), "different sources are alike"


@pytest.mark.parametrize("case", ["bert", "vit", "wav2vec2", "whisper"])
def test_prepare_is_thread_safe(case, folders, sources):
    encoder = build_encoder(folders, case)
    many = sources[encoder.modality] * 8
    for source, tensor in prepare_sources(many, encoder, workers=4):
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, encoder.prepare(source))


def load_reference_model(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, local_files_only=True).eval()


@torch.inference_mode()
def test_text_parts_equal_reference_hidden_states(folders, sources):
    from transformers import AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folders["bert"])(TEXTS, padding=True, return_tensors="pt")
    output = load_reference_model(folders["bert"])(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    for layer, states in ((-1, output.last_hidden_state), (1, output.hidden_states[1]), (0, output.hidden_states[0])):
        parts = parts_of(build_encoder(folders, "bert", layer=layer), sources["text"])
        for actual, expected, mask in zip(parts, states, real, strict=True):
            assert torch.allclose(actual, expected[mask], atol=1e-5)


@torch.inference_mode()
def test_image_parts_equal_reference_hidden_states(folders, sources):
    from transformers import AutoImageProcessor

    images = [Image.open(source.content) for source in sources["image"]]
    for case in ("vit", "convnext"):
        pixels = AutoImageProcessor.from_pretrained(folders[case], backend="pil")(images=images, return_tensors="pt")
        states = load_reference_model(folders[case])(**pixels).last_hidden_state
        parts = torch.stack(parts_of(build_encoder(folders, case), sources["image"]))
        if case == "convnext":  # a map: region (row, column) is part row · columns + column
            n, width, rows, columns = states.shape
            states = torch.stack([states[:, :, r, c] for r in range(rows) for c in range(columns)], dim=1)
            assert states.shape == (n, rows * columns, width)
        assert torch.allclose(parts, states, atol=1e-5)


@torch.inference_mode()
def test_audio_parts_equal_reference_hidden_states(folders, sources):
    from transformers import AutoFeatureExtractor

    from triptych.media import audio

    source = sources["audio"][2]
    for case, rate in (("wav2vec2", 8000), ("spectrogram_transformer", 16_000)):
        samples = audio.read(source.content, rate)
        inputs = AutoFeatureExtractor.from_pretrained(folders[case])(samples, sampling_rate=rate, return_tensors="pt")
        states = load_reference_model(folders[case])(**inputs).last_hidden_state[0]
        encoder = build_encoder(folders, case)
        assert torch.allclose(parts_of(encoder, [source])[0], states, atol=1e-5)


@torch.inference_mode()
def test_padding_of_fixed_window_is_masked_if_extractor_marks_it(folders, sources):
    encoder = build_encoder(folders, "whisper")
    parts_per_source = parts_of(encoder, sources["audio"])
    lengths = [soundfile.info(source.content).duration for source in sources["audio"]]
    assert [len(parts) for parts in parts_per_source] == [math.ceil(seconds * 50) for seconds in lengths]  # 20 ms each
    reference_encoder = load_reference_model(folders["whisper"]).get_encoder()
    inputs = encoder.prepare(sources["audio"][0])
    states = reference_encoder(inputs[:, :-1]).last_hidden_state[0]
    assert torch.allclose(parts_per_source[0], states[: len(parts_per_source[0])], atol=1e-5)


def test_long_audio_is_truncated_and_read_in_segments(folders, tmp_path):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 24_000), 8000)
    for case in ("wav2vec2", "clap", "whisper", "spectrogram_transformer"):
        encoder = build_encoder(folders, case)
        untrimmed, start = (
            encoder.prepare(Source("audio", path, *segment)) for segment in ((), (0.0, encoder.max_seconds))
        )
        later = encoder.prepare(Source("audio", path, 1.0, 1.0 + encoder.max_seconds))
        assert torch.equal(untrimmed, start)
        assert untrimmed.shape == later.shape
        assert not torch.equal(untrimmed, later)
        click = tmp_path / "click.wav"
        soundfile.write(click, np.ones(3), 8000)
        assert torch.isfinite(parts_of(encoder, [Source("audio", click)])[0]).all()


def test_long_texts_are_truncated_with_warning(folders):
    for case, limit in (("bert", 24), ("roberta", 22)):
        encoder = build_encoder(folders, case)
        with pytest.warns(UserWarning, match=f"hf_text: texts of more than {limit} tokens are truncated"):
            token_ids = encoder.prepare(Source("text", "rain " * 40))
        assert len(token_ids) == limit
        assert token_ids[-1] == 3
        assert torch.isfinite(parts_of(encoder, [Source("text", "rain " * (limit - 2))])[0]).all()
    with pytest.warns(UserWarning, match="more than 6 tokens"):
        assert len(build_encoder(folders, "bert", max_length=6).prepare(Source("text", TEXTS[2]))) == 6


def test_unfrozen_network_gets_gradients(folders, sources):
    encoder = build_encoder(folders, "bert", frozen=False).train()
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources["text"]]))
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
        ("hf_text", {}, "model is missing; set it to a folder"),
        ("hf_text", {"model": str(tmp_path / "nowhere")}, "no such folder"),
        ("hf_text", {"model": str(tmp_path)}, "no readable config.json in this folder"),
        ("hf_text", {"model": str(folders["vit"])}, "'vit' and takes pixel_values: it is not for text"),
        ("hf_image", {"model": str(folders["bert"])}, "'bert' and takes input_ids: it is not for image"),
        ("hf_image", {"model": str(folders["whisper"])}, "'whisper' and takes input_features: it is not for image"),
        ("hf_audio", {"model": str(folders["clip"])}, "'clip' and takes input_ids: it is not for audio"),
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
    with pytest.raises(RecipeError, match=r"\d+ weights are missing from its file, such as encoder.layer.1."):
        ENCODERS["hf_text"](model=str(folder))


def test_tokenizer_panic_raises_media_error(tmp_path):
    """The library panics, which is no Exception: it would end a thread of the loader, or the server."""
    folder = tiny_models.bert(tmp_path / "model")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }
    file.write_text(json.dumps(tokenizer))
    encoder = ENCODERS["hf_text"](model=str(folder))
    sources = [Source("text", "x" * 200), Source("text", "a dog barks")]
    (_, bad), (_, good) = prepare_sources(sources, encoder)
    assert isinstance(bad, MediaError)
    assert str(bad).startswith(f"{file}: cannot tokenise 'xxxx")
    assert isinstance(good, torch.Tensor)
