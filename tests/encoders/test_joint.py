"""Joint models: embeddings equal those of the library and are deterministic."""

from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from tests.encoders import tiny_joint_models, tiny_models
from triptych.checkpoint import load
from triptych.data.cache import Cache, content_key, fingerprint_encoder
from triptych.data.loader import collate
from triptych.encoders import ENCODERS, hugging_face_inputs
from triptych.errors import RecipeError
from triptych.interfaces import Source
from triptych.media import audio

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")

TEXTS = ["a dog barks", "two red bells", "three blue birds sing slowly on the roof", "rain"]
CASES = [(case, modality) for case, modalities in tiny_joint_models.MODALITIES.items() for modality in modalities]
RATE = tiny_models.SAMPLE_RATE


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the tiny models, by name."""
    root = tmp_path_factory.mktemp("models")
    models = {name: tiny_joint_models.save_model(name, root / name) for name in tiny_joint_models.MODALITIES}
    return models | {"fusion": tiny_models.clap(root / "fusion", fusion=True)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Four sources of each modality; one audio file is longer than a second."""
    folder, rng = tmp_path_factory.mktemp("media"), np.random.default_rng(0)
    by_modality = {"text": [Source("text", caption) for caption in TEXTS], "audio": [], "image": []}
    for i, length in enumerate((1000, 3000, 8000, 20_000)):
        soundfile.write(folder / f"{i}.wav", rng.normal(0, 0.1, length), RATE, subtype="FLOAT")
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


def load_reference_model(folder) -> Any:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder)
    config = config.audio_config if config.model_type == "pe_audio_video" else config
    # The text embeddings of AIMv2 depend on padding unless attention is eager.
    options = {"attn_implementation": "eager"} if config.model_type == "aimv2" else {}
    return AutoModel.from_pretrained(folder, config=config, local_files_only=True, **options).eval()


def load_reference_processor(folder) -> Any:
    """Return the processor of EmbeddingGemma 2 without its video processor, which needs torchvision."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer
    from transformers.models.embedding_gemma2 import processing_embedding_gemma2

    class Processor(processing_embedding_gemma2.EmbeddingGemma2Processor):
        def check_argument_for_proper_class(self, argument_name, argument):
            return type(argument)

    extractor, tokenizer = AutoFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return Processor(extractor, AutoImageProcessor.from_pretrained(folder, backend="pil"), tokenizer, None)


def read_contents(modality, sources) -> list[Any]:
    if modality == "text":
        return [source.content for source in sources]
    if modality == "image":
        return [Image.open(source.content) for source in sources]
    return [audio.read(source.content, RATE, 0, 1.0) for source in sources]


@torch.inference_mode()
def reference_embeddings(folder, modality, sources):
    """Return the embeddings of the library, batched its way unless its padding changes the embedding."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    model, contents = load_reference_model(folder), read_contents(modality, sources)
    if model.config.model_type == "embedding_gemma2":
        arguments = {"text": {"text": contents}, "image": {"images": [[content] for content in contents]}}
        arguments["audio"] = {"audio": contents, "sampling_rate": RATE}
        inputs = load_reference_processor(folder)(**arguments[modality], return_tensors="pt")
        mask = inputs["attention_mask"].unsqueeze(2)
        return (model(**inputs).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
    if model.config.model_type == "pe_audio":
        extractor, tokenizer = AutoFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        if modality == "audio":
            inputs = [extractor(content, sampling_rate=RATE, return_tensors="pt") for content in contents]
            return torch.cat([model(**tokenizer("a", return_tensors="pt"), **x).audio_embeds for x in inputs])
        silence = extractor([np.zeros(800)] * len(contents), sampling_rate=RATE, return_tensors="pt")
        return model(**tokenizer(contents, padding=True, return_tensors="pt"), **silence).text_audio_embeds
    if modality == "text":
        is_padded = model.config.model_type.startswith("siglip")
        inputs = AutoTokenizer.from_pretrained(folder)(
            contents, padding="max_length" if is_padded else True, return_tensors="pt"
        )
        return model.get_text_features(
            inputs["input_ids"], None if is_padded else inputs["attention_mask"]
        ).pooler_output
    if modality == "image":
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        return model.get_image_features(**processor(images=contents, return_tensors="pt")).pooler_output
    inputs = AutoFeatureExtractor.from_pretrained(folder)(contents, sampling_rate=RATE, return_tensors="pt")
    inputs["is_longer"] = torch.zeros_like(inputs["is_longer"])
    return model.get_audio_features(**inputs).pooler_output


@pytest.mark.parametrize(("case", "modality"), [*CASES, ("fusion", "audio")])
def test_embedding_equals_reference(case, modality, folders, sources):
    items = sources[modality]
    encoder = build_encoder(folders, case, modality)
    expected = reference_embeddings(folders[case], modality, items)
    scale = expected.norm(dim=1, keepdim=True)
    batched = embeddings(encoder, items) / scale
    assert torch.allclose(batched, expected / scale, atol=1e-5), (batched - expected / scale).abs().max()
    separate = torch.cat([embeddings(encoder, [source]) for source in items])
    assert torch.allclose(batched, separate / scale, atol=1e-5)
    assert torch.allclose(batched, embeddings(encoder, items[::-1]).flip(0) / scale, atol=1e-5)
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


def test_longest_audio_is_that_of_the_model(folders):
    """CLAP has a window of a second here; EmbeddingGemma 2 takes 480,000 samples; PE-Audio has no limit."""
    limits = {"clap": 1.0, "embedding_gemma2": 30.0, "pe_audio": 30.0}
    for case, seconds in limits.items():
        assert ENCODERS["joint_audio"](model=str(folders[case])).max_seconds == seconds
    with pytest.raises(RecipeError, match=r"joint_audio: max_seconds = 90: .* takes at most 60 s"):
        ENCODERS["joint_audio"](model=str(folders["embedding_gemma2"]), max_seconds=90.0)


@pytest.mark.parametrize(("case", "modality"), CASES)
def test_unfrozen_tower_gets_gradients(case, modality, folders, sources):
    encoder = build_encoder(folders, case, modality, frozen=False).train()
    parts, _ = encoder(*collate([encoder.prepare(source) for source in sources[modality]]))
    parts[:, :, 0].sum().backward()
    # The library freezes the codec of PE-Audio, and the embeddings of BLIP do not depend on its cross-attention.
    unused = "dac_encoder", "bottleneck", "crossattention", "pooler"
    for name, parameter in encoder.named_parameters():
        if not any(word in name for word in unused):
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


def test_long_texts_are_truncated_with_warning(folders):
    for case, limit in (("clip", 24), ("embedding_gemma2", 64)):
        encoder = build_encoder(folders, case, "text")
        with pytest.warns(UserWarning, match=f"joint_text: texts of more than {limit} tokens are truncated"):
            token_ids = encoder.prepare(Source("text", "rain " * 80))
        assert len(token_ids) == limit
        last = 3 if case == "clip" else 1
        assert token_ids[-1] == last, "the last mark, at which CLIP reads the text's embedding, must stay"


def test_prompts_precede_texts(folders, sources, tmp_path):
    encoder = build_encoder(folders, "embedding_gemma2", "text")
    assert set(encoder.prompts) == {"query", "document"}
    plain = Source("text", "a dog barks")
    query, document = encoder.with_prompt(plain, "query"), encoder.with_prompt(plain, "document")
    written_out = [
        Source("text", "task: search result | query: a dog barks"),
        Source("text", "title: none | text: a dog barks"),
    ]
    assert torch.equal(embeddings(encoder, [query, document]), embeddings(encoder, written_out))
    assert not torch.allclose(embeddings(encoder, [query]), embeddings(encoder, [plain]), atol=1e-2)
    assert len({content_key(source, "a dog barks") for source in (plain, query, document)}) == 3
    clip = build_encoder(folders, "clip", "text")
    assert not clip.prompts
    assert clip.with_prompt(plain, "query") == plain
    image = build_encoder(folders, "embedding_gemma2", "image")
    assert image.with_prompt(sources["image"][0], "document") == sources["image"][0]


def test_prompts_of_the_model_folder_replace_the_defaults(tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    without = fingerprint_encoder(ENCODERS["joint_text"](model=str(folder)))
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "red ", "passage": "low ", "STS": ""}}'
    )
    encoder = ENCODERS["joint_text"](model=str(folder)).eval()
    assert encoder.prompts == {"query": "red ", "passage": "low ", "document": "low "}
    document = encoder.with_prompt(Source("text", "dog"), "document")
    assert torch.equal(encoder.prepare(document), encoder.prepare(Source("text", "low dog")))
    assert fingerprint_encoder(encoder) != without, "cached features depend on the prompts"
    (folder / "config_sentence_transformers.json").write_text("[]")
    assert not ENCODERS["joint_text"](model=str(folder)).prompts


def test_spaces_cache_prompted_texts_separately(folders, tmp_path):
    space, cache = load(folders["embedding_gemma2"]), Cache(tmp_path / "cache")
    encoder, plain = space.encoder("text"), Source("text", "a dog barks")
    sources = [plain, encoder.with_prompt(plain, "query"), encoder.with_prompt(plain, "document")]
    fresh = space.embed(sources, "text").features.embedding
    for _ in range(2):
        cached = space.embed(sources, "text", with_parts=False, cache=cache).features.embedding
        assert torch.allclose(cached, fresh, atol=1e-5)
    assert not torch.allclose(fresh[1], fresh[2], atol=1e-2)


def test_many_patches_are_embedded_in_chunks(folders, sources, monkeypatch):
    for case in ("siglip2", "embedding_gemma2"):
        encoder = build_encoder(folders, case, "image")
        expected = embeddings(encoder, sources["image"])
        for limit in (1, 600):
            monkeypatch.setattr(hugging_face_inputs, "MAX_PATCHES", limit)
            assert torch.allclose(embeddings(encoder, sources["image"]), expected, atol=1e-5)


def test_a_network_without_one_embedding_per_item_raises(tmp_path):
    from transformers import FlavaConfig, FlavaModel

    tiny_models.save_image_processor(tmp_path, "ViTImageProcessorPil")
    text, image = tiny_joint_models.TEXT, tiny_joint_models.VISION
    config = FlavaConfig(text_config=text, image_config=image, multimodal_config=image, projection_dim=8)
    tiny_models.save_network(FlavaModel(config), tmp_path)
    with pytest.raises(RecipeError, match=r"joint_image: .*returns \(1, 1, 5, 8\) instead of one embedding per item"):
        ENCODERS["joint_image"](model=str(tmp_path))


def test_truncated_embeddings_are_the_first_dimensions(folders, sources):
    full = build_encoder(folders, "clip", "image")
    with pytest.warns(UserWarning, match=r"joint_image: .*does not declare to which dimensions"):
        truncated = build_encoder(folders, "clip", "image", truncate_dim=4)
    assert truncated.feature_dim == 4
    assert torch.equal(embeddings(truncated, sources["image"]), embeddings(full, sources["image"])[:, :4])
    for dim, message in ((9, "must be between 1 and 8"), (-1, "must be between 1 and 8")):
        with pytest.raises(RecipeError, match=f"joint_image: truncate_dim = {dim}: {message}"):
            build_encoder(folders, "clip", "image", truncate_dim=dim)
    with pytest.raises(RecipeError, match=r"truncate_dim = 5: the model was trained for 768, 512, 256, 128"):
        build_encoder(folders, "embedding_gemma2", "text", truncate_dim=5)


@pytest.mark.parametrize(("case", "modality"), [("embedding_gemma2", "image"), ("clip", "text"), ("clap", "audio")])
def test_bfloat16_weights_give_similar_float32_embeddings(case, modality, folders, sources):
    encoder = build_encoder(folders, case, modality, dtype="bfloat16")
    assert {weight.dtype for weight in encoder.parameters()} == {torch.bfloat16}
    actual, expected = (embeddings(e, sources[modality]) for e in (encoder, build_encoder(folders, case, modality)))
    assert actual.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(actual, expected).min() > 0.98
    with pytest.raises(
        RecipeError, match=r"'float16' is unknown; known: bfloat16, float32.*many models overflow in float16"
    ):
        build_encoder(folders, case, modality, dtype="float16")


def test_invalid_settings_raise(folders, tmp_path):
    for name, settings, message in [
        ("joint_text", {}, "model is missing"),
        ("joint_text", {"model": "./nowhere"}, "no such folder"),
        ("joint_text", {"model": str(tiny_models.bert(tmp_path / "bert"))}, "'bert', which has one modality"),
        ("joint_audio", {"model": str(folders["clip"])}, "embeds image and text, but not audio"),
        ("joint_image", {"model": str(folders["clap"])}, "embeds audio and text, but not image"),
        ("joint_audio", {"model": str(folders["clap"]), "max_seconds": 10.0}, "max_seconds = 10: .* takes at most 1 s"),
        ("joint_text", {"model": str(folders["clip"]), "library": "keras"}, "library 'keras' is unknown"),
    ]:
        with pytest.raises(RecipeError, match=f"^{name}: .*{message}"):
            ENCODERS[name](**settings)
    (folders["clap"] / "preprocessor_config.json").rename(folders["clap"] / "elsewhere.json")
    with pytest.raises(RecipeError, match=r"joint_audio: .*no readable feature extractor in this folder"):
        build_encoder(folders, "clap", "audio")
    (folders["clap"] / "elsewhere.json").rename(folders["clap"] / "preprocessor_config.json")
