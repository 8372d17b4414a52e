"""Which modalities a network embeds, and what its towers share."""

import gc
import json

import pytest
import torch

from tests.encoders import tiny_joint_models, tiny_models
from tests.encoders.test_joint import load_reference_model, load_reference_processor
from triptych.encoders.hugging_face import PretrainedModel
from triptych.encoders.joint_networks import (
    Placeholder,
    explain_not_joint,
    joint_modalities,
    load_joint_network,
    matryoshka_dims,
)
from triptych.errors import RecipeError

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")


def load_network(folder, modality, is_shared=True):
    return load_joint_network(PretrainedModel("joint_x", str(folder), "main"), modality, torch.float32, is_shared)[0]


def make_config(model_type, **options):
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **options)


@pytest.mark.parametrize("model_type", tiny_joint_models.MODALITIES)
def test_modalities_follow_from_the_methods_of_the_network(model_type, tmp_path):
    folder = tiny_joint_models.save_model(model_type, tmp_path / model_type)
    config = PretrainedModel("joint_x", str(folder), "main").load_config()
    assert joint_modalities(config) == tiny_joint_models.MODALITIES[model_type]


def test_a_language_model_has_the_modalities_of_its_towers(tmp_path):
    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"audio_config": None}))
    config = PretrainedModel("joint_x", str(folder), "main").load_config()
    assert joint_modalities(config) == ("image", "text")
    with pytest.raises(RecipeError, match=r"joint_x: .*embeds image and text, but not audio"):
        load_network(folder, "audio")


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("bert", "'bert', which has one modality or no embeddings; use a joint model"),
        ("whisper", "which has one modality or no embeddings"),
        ("llava", "generates text and has no embeddings; use an embedding model. If .* write st: before its name"),
        ("gemma4", "generates text and has no embeddings"),
        ("qwen2_5_vl", "generates text and has no embeddings"),
        ("xclip", "embeds videos; use a joint model of images, audio and texts"),
        ("pe_video", "embeds videos; use a joint model of images, audio and texts"),
    ],
)
def test_other_models_are_explained(model_type, message):
    config = make_config(model_type)
    assert joint_modalities(config) == ()
    with pytest.raises(RecipeError, match=message):
        raise RecipeError(explain_not_joint(config))


def test_matryoshka_dims_of_config():
    assert matryoshka_dims(make_config("embedding_gemma2")) == (768, 512, 256, 128)
    assert matryoshka_dims(make_config("clip", matryoshka_dimensions=[64, 32])) == (64, 32)
    assert matryoshka_dims(make_config("clip")) == ()


@pytest.mark.parametrize("model_type", ["clip", "siglip", "siglip2", "align", "clap", "pe_audio"])
def test_towers_of_one_model_partition_its_weights(model_type, tmp_path):
    """Towers share no weights, and together they have those of the model, without temperatures and biases."""
    folder = tiny_joint_models.save_model(model_type, tmp_path / model_type)
    modalities = tiny_joint_models.MODALITIES[model_type]
    towers = [{name for name, _ in load_network(folder, m).named_parameters()} for m in modalities]
    model = load_reference_model(folder)
    assert towers[0] | towers[1] == {name for name, weight in model.named_parameters() if weight.numel() > 1}
    assert not towers[0] & towers[1]


def test_frozen_towers_share_the_language_model(tmp_path):
    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    towers = [load_network(folder, modality) for modality in ("image", "audio", "text")]
    image, audio, text = towers
    assert image.language_model is audio.language_model is text.language_model
    assert (image.audio_tower, audio.vision_tower, text.audio_tower, text.vision_tower) == (None, None, None, None)
    total = sum(weight.numel() for weight in torch.nn.ModuleList(towers).parameters())
    assert total == sum(weight.numel() for weight in load_reference_model(folder).parameters())
    assert load_network(folder, "text", is_shared=False).language_model is not text.language_model
    before = text.language_model.norm.weight.clone()
    with torch.no_grad():
        model = load_reference_model(folder)
        model.language_model.norm.weight += 1
    tiny_models.save_network(model, folder)
    assert torch.equal(load_network(folder, "text").language_model.norm.weight, before + 1), "the files changed"


def test_a_shared_language_model_is_freed_with_its_last_tower(tmp_path):
    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    network = load_network(folder, "text")
    identity = id(network.language_model)
    del network
    gc.collect()
    alive = [module for module in gc.get_objects() if id(module) == identity and isinstance(module, torch.nn.Module)]
    assert not alive


def test_placeholders_equal_those_of_the_processor(tmp_path):
    from PIL import Image

    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    processor = load_reference_processor(folder)
    images = [Image.new("RGB", size) for size in ((40, 60), (60, 20))]
    expected = processor(images=[[image] for image in images], return_tensors="pt")
    placeholder = Placeholder.load(PretrainedModel("joint_x", str(folder), "main"), "image")
    assert placeholder is not None
    counts = (expected["input_ids"] == placeholder.token).sum(dim=1)
    tokens = placeholder.make_tokens(counts)
    for i in range(2):  # the processor pads on the left
        actual = tokens["input_ids"][i][tokens["attention_mask"][i].bool()]
        assert torch.equal(actual, expected["input_ids"][i][expected["attention_mask"][i].bool()])
    assert Placeholder.load(PretrainedModel("joint_x", str(folder), "main"), "text") is None
