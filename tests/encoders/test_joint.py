"""Joint models: embeddings equal those of the library and are deterministic."""

from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from tests.encoders import tiny_models
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.encoders.joint import joint_modalities
from triptych.errors import RecipeError
from triptych.interfaces import Source
from triptych.media import audio

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")

TEXTS = ["a dog barks", "two red bells", "three blue birds sing slowly on the roof", "rain"]
CASES = [
    ("clip", "image"),
    ("clip", "text"),
    ("siglip", "image"),
    ("siglip", "text"),
    ("clap", "audio"),
    ("clap", "text"),
]
RATE = tiny_models.SAMPLE_RATE


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the tiny models, by name."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    models = {name: getattr(tiny_models, name)(root / name) for name in ("clip", "siglip", "clap")}
    return models | {"fusion": tiny_models.clap(root / "fusion", fusion=True)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Four sources of each modality; one audio file is longer than the model's window of a second."""
    folder, rng = tmp_path_factory.mktemp("media"), np.random.default_rng(0)
    by_modality = {"text": [Source("text", caption) for caption in TEXTS], "audio": [], "image": []}
    for i, length in enumerate((1000, 3000, 8000, 20_000)):
        soundfile.write(folder / f"{i}.wav", rng.normal(0, 0.1, length), RATE)
        by_modality["audio"].append(Source("audio", folder / f"{i}.wav"))
        Image.fromarray(rng.integers(0, 255, (40 + 9 * i, 60, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        by_modality["image"].append(Source("image", folder / f"{i}.png"))
    return by_modality


def build_encoder(folders, case, modality, **settings) -> Any:
    defaults = {"max_seconds": 1.0} if modality == "audio" else {}
    return ENCODERS[f"joint_{modality}"](model=str(folders[case]), **defaults | settings).eval()


@torch.inference_mode()
def embeddings(encoder, sources):
    """Return the embedding of each source, computed in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    assert parts.shape == (len(sources), 1, encoder.feature_dim)
    assert mask.shape == (len(sources), 1)
    assert mask.all()
    return parts[:, 0]


def load_reference_model(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, local_files_only=True).eval()


@torch.inference_mode()
def reference_embeddings(folder, modality, sources):
    """Return the embeddings of the library, batched its way."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    model = load_reference_model(folder)
    if modality == "text":
        padding = "max_length" if model.config.model_type == "siglip" else True
        inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=padding, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        if padding == "max_length":
            inputs.pop("attention_mask")
        return model.get_text_features(**inputs).pooler_output
    if modality == "image":
        images = [Image.open(source.content) for source in sources]
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        return model.get_image_features(**processor(images=images, return_tensors="pt")).pooler_output
    samples = [audio.read(source.content, RATE, 0, 1.0) for source in sources]
    inputs = AutoFeatureExtractor.from_pretrained(folder)(samples, sampling_rate=RATE, return_tensors="pt")
    inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
    return model.get_audio_features(**inputs).pooler_output


@pytest.mark.parametrize(("case", "modality"), [*CASES, ("fusion", "audio")])
def test_embedding_equals_reference(case, modality, folders, sources):
    items = sources[modality]
    encoder = build_encoder(folders, case, modality)
    batched = embeddings(encoder, items)
    assert torch.allclose(batched, reference_embeddings(folders[case], modality, items), atol=1e-5)
    separate = torch.cat([embeddings(encoder, [source]) for source in items])
    assert torch.allclose(batched, separate, atol=1e-6)
    assert torch.allclose(batched, embeddings(encoder, items[::-1]).flip(0), atol=1e-6)
    assert not torch.allclose(batched[0], batched[1], atol=1e-3), "different sources are alike"


@pytest.mark.parametrize("case", ["clap", "fusion"])
def test_audio_preparation_is_deterministic(case, folders, sources):
    """The library's extractor crops long audio at random; this uses the start, for every state of NumPy's generator."""
    encoder = build_encoder(folders, case, "audio")
    embedded = []
    for seed in range(3):
        np.random.seed(seed)
        embedded.append(embeddings(encoder, sources["audio"]))
    assert torch.equal(embedded[0], embedded[1])
    assert torch.equal(embedded[0], embedded[2])
    long = sources["audio"][3]
    start = Source("audio", long.content, 0.0, 1.0)
    later = Source("audio", long.content, 1.2, 2.2)
    assert torch.equal(encoder.prepare(long), encoder.prepare(start))
    assert not torch.equal(encoder.prepare(long), encoder.prepare(later))


def test_extra_samples_are_truncated(folders):
    """Resampling can return one sample more than the window, and the extractor would crop at random."""
    samples = np.random.default_rng(0).normal(0, 0.1, RATE + 500).astype(np.float32)
    for case in ("clap", "fusion"):
        audio_input = build_encoder(folders, case, "audio").tower.inputs
        assert torch.equal(audio_input.prepare_samples(samples), audio_input.prepare_samples(samples[:RATE]))


def test_towers_of_one_model_partition_its_weights(folders):
    """Towers share no weights, and together they have those of the model."""
    for case, modalities in (("clip", ("image", "text")), ("siglip", ("image", "text")), ("clap", ("audio", "text"))):
        encoders = [build_encoder(folders, case, modality) for modality in modalities]
        tower_names = [{name for name, _ in encoder.tower.network.named_parameters()} for encoder in encoders]
        model_names = {
            name for name, _ in load_reference_model(folders[case]).named_parameters() if not name.startswith("logit_")
        }
        assert tower_names[0] | tower_names[1] == model_names
        assert not tower_names[0] & tower_names[1]


def test_unfrozen_tower_gets_gradients(folders, sources):
    for case, modality in CASES:
        encoder = build_encoder(folders, case, modality, frozen=False).train()
        parts, _ = encoder(*collate([encoder.prepare(source) for source in sources[modality]]))
        parts[:, :, 0].sum().backward()
        for name, parameter in encoder.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


def test_long_texts_are_truncated_with_warning(folders):
    encoder = build_encoder(folders, "clip", "text")
    with pytest.warns(UserWarning, match="joint_text: texts of more than 24 tokens are truncated"):
        token_ids = encoder.prepare(Source("text", "rain " * 40))
    assert len(token_ids) == 24
    assert token_ids[-1] == 3, "the last mark, at which the model reads the text's embedding, must stay"


def test_joint_modalities_of_folders(folders, tmp_path):
    assert joint_modalities(folders["clip"]) == ("image", "text")
    assert joint_modalities(folders["siglip"]) == ("image", "text")
    assert joint_modalities(str(folders["clap"])) == ("audio", "text")
    assert joint_modalities(tiny_models.bert(tmp_path / "bert")) is None
    assert joint_modalities(tmp_path / "nowhere") is None
    (tmp_path / "config.json").write_text("[1]")
    assert joint_modalities(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    assert joint_modalities(tmp_path) is None


def test_invalid_settings_raise(folders, tmp_path):
    for name, settings, message in [
        ("joint_text", {}, "model is missing"),
        ("joint_text", {"model": "./nowhere"}, "no such folder"),
        (
            "joint_text",
            {"model": str(tiny_models.bert(tmp_path / "bert"))},
            "'bert', which has no joint space with text",
        ),
        (
            "joint_audio",
            {"model": str(folders["clip"])},
            "'clip', which has no joint space with audio; supported types: clap",
        ),
        (
            "joint_image",
            {"model": str(folders["clap"])},
            "'clap', which has no joint space with image; supported types: .*siglip",
        ),
        ("joint_audio", {"model": str(folders["clap"])}, "max_seconds = 10: .* takes at most 1 s"),
    ]:
        with pytest.raises(RecipeError, match=f"^{name}: .*{message}"):
            ENCODERS[name](**settings)
    (folders["clap"] / "preprocessor_config.json").rename(folders["clap"] / "elsewhere.json")
    with pytest.raises(RecipeError, match=r"joint_audio: .*no readable feature extractor in this folder"):
        build_encoder(folders, "clap", "audio")
    (folders["clap"] / "elsewhere.json").rename(folders["clap"] / "preprocessor_config.json")
