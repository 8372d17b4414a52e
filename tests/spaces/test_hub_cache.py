"""Joint models in the local cache of the hub."""

import json

import pytest

from tests.spaces.hub_folder import add_model, write_placeholder
from triptych.spaces.hub_cache import CachedModel, find_cached_folder, list_cached_models

CLIP = {"model_type": "clip", "projection_dim": 512, "text_config": {}, "vision_config": {}}
OMNI = {
    "model_type": "embedding_gemma2",
    "text_config": {"embedding_dim": 768},
    "vision_config": {},
    "audio_config": {},
}
FILES = ("model.safetensors", "tokenizer.json", "processor_config.json")


@pytest.fixture
def add(tmp_path, hub_cache):
    """Add a model with a configuration and files to the cache."""

    def add_placeholder(name, config, files=FILES):
        folder = write_placeholder(tmp_path / "models" / name, config, files)
        return add_model(hub_cache, name, folder)

    return add_placeholder


def test_models_with_most_modalities_come_first(add):
    add("a/clip", CLIP)
    add("b/omni", OMNI)
    add("b/text-and-images", OMNI | {"audio_config": None})
    add("c/bert", {"model_type": "bert"})
    assert list_cached_models() == [
        CachedModel("b/omni", ("image", "audio", "text"), 768),
        CachedModel("a/clip", ("image", "text"), 512),
        CachedModel("b/text-and-images", ("image", "text"), 768),
    ]


@pytest.mark.parametrize("missing", range(3))
def test_an_incomplete_model_is_not_listed(add, missing):
    add("a/clip", CLIP, tuple(name for i, name in enumerate(FILES) if i != missing))
    assert list_cached_models() == []
    assert find_cached_folder("a/clip") is None


def test_a_model_in_several_files_is_complete_when_all_are_there(add):
    folder = add("a/clip", CLIP, ("model-1.safetensors", *FILES[1:]))
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_cached_folder("a/clip") is None
    (folder / "model-2.safetensors").write_text("{}")
    assert find_cached_folder("a/clip") == folder


@pytest.mark.parametrize(
    "content", ["", "[]", "\ud800", '{"model_type": []}', '{"model_type": "clip", "text_config": 3}']
)
def test_a_damaged_configuration_hides_the_model_only(add, content):
    add("b/omni", OMNI)
    folder = add("a/clip", CLIP)
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert list_cached_models()[0].name == "b/omni"


def test_without_a_cache_there_are_no_models():
    assert list_cached_models() == []
    assert find_cached_folder("a/clip") is None
