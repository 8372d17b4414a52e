"""Models of sentence-transformers: embeddings equal those of the library, and code of a model is never run."""

import json
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.encoders import tiny_models
from triptych.data.loader import collate, prepare_sources
from triptych.encoders import ENCODERS
from triptych.encoders.hugging_face import PretrainedModel, silence_transformers
from triptych.encoders.sentence_transformer import SentenceTransformerTower, list_prompts, load_sentence_transformer
from triptych.errors import RecipeError
from triptych.interfaces import Source
from triptych.media import audio

pytestmark = pytest.mark.slow

pytest.importorskip("sentence_transformers", reason="the extra 'sentence-transformers' is not installed")

RATE = tiny_models.SAMPLE_RATE
TEXTS = ["a dog barks", "two red bells", "three blue birds sing slowly on the roof", "rain"]
PROMPTS = {"query": "the dog ", "passage": "a bell ", "STS": "rain on "}


def load_library(folder) -> Any:
    from sentence_transformers import SentenceTransformer

    with silence_transformers(show_progress=False):
        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def save_text_model(folder, **attributes):
    """Save a text model: a network, mean pooling without the prompt, a dense layer and normalisation."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    with silence_transformers(show_progress=False):
        transformer = Transformer(str(tiny_models.bert(folder / "network")))
        pooling = Pooling(16, pooling_mode="mean", include_prompt=False)
        model = SentenceTransformer(modules=[transformer, pooling, Dense(16, 6), Normalize()], device="cpu")
        for name, value in attributes.items():
            setattr(model, name, value)
        model.save(str(folder / "model"))
    return folder / "model"


def save_asymmetric_model(folder):
    """Save a model that embeds queries and documents with different networks."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    with silence_transformers(show_progress=False):
        towers = [[Transformer(str(tiny_models.bert(folder / name))), Pooling(16)] for name in ("query", "document")]
        router = Router.for_query_document(query_modules=towers[0], document_modules=towers[1])
        SentenceTransformer(modules=[router], device="cpu").save(str(folder / "model"))
    return folder / "model"


def build_encoder(folder, modality, **settings) -> Any:
    return ENCODERS[f"joint_{modality}"](model=str(folder), library="sentence-transformers", **settings).eval()


@torch.inference_mode()
def embeddings(encoder, sources):
    """Return the embedding of each source, computed in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    assert parts.shape == (len(sources), 1, encoder.feature_dim)
    assert mask.all()
    return parts[:, 0]


def check_embeddings(encoder, sources, expected):
    """Compare with the library; then check that batch and order have no effect."""
    batched = embeddings(encoder, sources)
    assert torch.allclose(batched, torch.as_tensor(expected), atol=1e-5)
    assert torch.allclose(batched, torch.cat([embeddings(encoder, [source]) for source in sources]), atol=1e-5)
    assert torch.allclose(batched, embeddings(encoder, sources[::-1]).flip(0), atol=1e-5)
    assert not torch.allclose(batched[0], batched[1], atol=1e-3), "different sources are alike"


def test_texts_with_and_without_prompts_equal_the_library(tmp_path):
    folder = save_text_model(tmp_path, prompts=PROMPTS)
    model, encoder = load_library(folder), build_encoder(folder, "text")
    assert encoder.prompts == PROMPTS | {"document": "a bell "}
    sources = [Source("text", content) for content in TEXTS]
    check_embeddings(encoder, sources, model.encode(TEXTS))
    queries = [encoder.with_prompt(source, "query") for source in sources]
    check_embeddings(encoder, queries, model.encode_query(TEXTS))
    documents = [encoder.with_prompt(source, "document") for source in sources]
    check_embeddings(encoder, documents, model.encode_document(TEXTS))
    named = [encoder.with_prompt(source, "STS") for source in sources]
    check_embeddings(encoder, named, model.encode(TEXTS, prompt_name="STS"))
    mixed = embeddings(encoder, [queries[0], sources[0], documents[0], named[0]])
    assert torch.allclose(mixed[2], torch.as_tensor(model.encode_document(TEXTS[0])), atol=1e-5)
    assert torch.allclose(mixed[1], torch.as_tensor(model.encode(TEXTS[0])), atol=1e-5)


def test_a_default_prompt_is_used_without_a_prompt_name(tmp_path):
    folder = save_text_model(tmp_path, prompts={"query": "", "STS": "rain on "}, default_prompt_name="STS")
    model, encoder = load_library(folder), build_encoder(folder, "text")
    sources = [Source("text", content) for content in TEXTS]
    check_embeddings(encoder, sources, model.encode(TEXTS))
    queries = [encoder.with_prompt(source, "query") for source in sources]
    check_embeddings(encoder, queries, model.encode_query(TEXTS))
    assert not np.allclose(model.encode(TEXTS), model.encode_query(TEXTS), atol=1e-3)


def test_an_asymmetric_model_has_different_networks_for_queries_and_documents(tmp_path):
    folder = save_asymmetric_model(tmp_path)
    model, encoder = load_library(folder), build_encoder(folder, "text")
    assert list_prompts(model) == {"query": "", "document": ""}
    sources = [Source("text", content) for content in TEXTS]
    queries = [encoder.with_prompt(source, "query") for source in sources]
    documents = [encoder.with_prompt(source, "document") for source in sources]
    check_embeddings(encoder, queries, model.encode_query(TEXTS))
    check_embeddings(encoder, documents, model.encode_document(TEXTS))
    assert not np.allclose(model.encode_query(TEXTS), model.encode_document(TEXTS), atol=1e-2)


@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_images_equal_the_library(case, tmp_path):
    folder, rng = getattr(tiny_models, case)(tmp_path / case), np.random.default_rng(0)
    sources = []
    for i in range(4):
        path = tmp_path / f"{i}.png"
        Image.fromarray(rng.integers(0, 255, (40 + 9 * i, 60, 3), dtype=np.uint8)).save(path)
        sources.append(Source("image", path))
    expected = load_library(folder).encode([Image.open(source.content) for source in sources])
    check_embeddings(build_encoder(folder, "image"), sources, expected)


def test_audio_equals_the_library(tmp_path):
    folder, rng, sources = tiny_models.clap(tmp_path / "clap"), np.random.default_rng(0), []
    for i, length in enumerate((1000, 3000, 8000, 20_000)):
        soundfile.write(tmp_path / f"{i}.wav", rng.normal(0, 0.1, length), RATE, subtype="FLOAT")
        sources.append(Source("audio", tmp_path / f"{i}.wav"))
    samples = [audio.read(source.content, RATE, 0, 1.0) for source in sources]
    encoder = build_encoder(folder, "audio")
    assert encoder.max_seconds == 1.0
    expected = load_library(folder).encode([{"array": x, "sampling_rate": RATE} for x in samples])
    check_embeddings(encoder, sources, expected)


def test_encoders_of_one_model_share_it(tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    image, text = build_encoder(folder, "image"), build_encoder(folder, "text")
    assert image.tower.model is text.tower.model
    assert build_encoder(folder, "text", dtype="bfloat16").tower.model is not text.tower.model
    torch.manual_seed(1)
    tiny_models.clip(folder)
    assert build_encoder(folder, "text").tower.model is not text.tower.model, "the files changed"


def test_truncated_and_bfloat16_embeddings(tmp_path):
    folder = save_text_model(tmp_path)
    sources = [Source("text", content) for content in TEXTS]
    full = embeddings(build_encoder(folder, "text"), sources)
    with pytest.warns(UserWarning, match="does not declare to which dimensions"):
        truncated = build_encoder(folder, "text", truncate_dim=4)
    assert torch.equal(embeddings(truncated, sources), full[:, :4])
    half = embeddings(build_encoder(folder, "text", dtype="bfloat16"), sources)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half, full).min() > 0.98


def test_texts_can_be_encoded_by_several_threads(tmp_path):
    encoder = build_encoder(save_text_model(tmp_path), "text")
    sources = [Source("text", f"{content} {content}") for content in TEXTS * 8]
    prepared = [tensor for _, tensor in prepare_sources(sources, encoder, workers=4) if torch.is_tensor(tensor)]
    assert len(prepared) == len(sources)
    with torch.inference_mode():
        parts, _ = encoder(*collate(prepared))
    assert torch.allclose(parts[:4], parts[4:8], atol=1e-6)


@pytest.mark.parametrize("place", ["modules.json", "config.json"])
def test_code_of_a_model_is_not_run(place, tmp_path):
    folder = save_text_model(tmp_path)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('ran')")
    content = json.loads((folder / place).read_text())
    if place == "modules.json":
        content[1]["type"] = "code.Pooling"
    else:
        content |= {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (folder / place).write_text(json.dumps(content))
    with pytest.raises(
        RecipeError, match=r"joint_text: .*cannot load the model: the model contains code, which triptych"
    ):
        build_encoder(folder, "text")
    assert not (tmp_path / "ran").exists()


def test_invalid_models_and_settings_raise(tmp_path, monkeypatch):
    folder = save_text_model(tmp_path)
    with pytest.raises(RecipeError, match=r"joint_image: .*embeds text, but not image"):
        build_encoder(folder, "image")
    with pytest.raises(RecipeError, match=r"joint_text: .*cannot be trained; set frozen = true"):
        build_encoder(folder, "text", frozen=False)
    pretrained = PretrainedModel("joint_text", str(folder), "main")
    monkeypatch.setattr("triptych.encoders.sentence_transformer.version", lambda _: "5.9.1")
    with pytest.raises(RecipeError, match=r"needs sentence-transformers 6 or newer; run: pip install 'triptych\["):
        load_sentence_transformer(pretrained)
    monkeypatch.undo()
    monkeypatch.setattr("triptych.encoders.hugging_face.find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=r"joint_text: sentence_transformers is not installed; run: pip install"):
        SentenceTransformerTower(pretrained, "text", torch.float32)
    monkeypatch.undo()
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(RecipeError, match="the weights are incomplete or damaged: delete them and download"):
        build_encoder(folder, "text")
    for path in folder.rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(RecipeError, match=r"no \*.safetensors in the folder; .*The download is incomplete"):
        build_encoder(folder, "text")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("visual_projection.weight"), "1 weights are missing .* visual_projection.weight"),
        (lambda weights: weights["visual_projection.weight"].fill_(np.nan), "contain NaN or infinity"),
    ],
)
def test_missing_and_invalid_weights_are_not_replaced_by_random_numbers(change, message, tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=message):
        build_encoder(folder, "image")
