"""Names of joint models: folders, hub names in a cache on disk, settings, and folders that are no joint models."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.encoders import tiny_joint_models, tiny_models
from tests.encoders.test_sentence_transformer import save_text_model
from triptych.checkpoint import compute_fingerprint, load, resolve_path
from triptych.encoders.joint_models import find_model
from triptych.errors import CheckpointError, RecipeError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A function that stores a model folder in an empty cache of the Hugging Face hub, which is offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def store(folder: Path, name: str, revision: str = "main") -> Path:
        """Move the files to blobs, and link them from the snapshot of the revision."""
        repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
        for path in (snapshot, blobs, repository / "refs"):
            path.mkdir(parents=True)
        (repository / "refs" / revision).write_text(COMMIT)
        for i, path in enumerate(sorted(folder.rglob("*"))):
            if path.is_file():
                shutil.move(path, blobs / str(i))
                (snapshot / path.relative_to(folder)).parent.mkdir(exist_ok=True)
                (snapshot / path.relative_to(folder)).symlink_to(blobs / str(i))
        return snapshot

    return store


def test_names_with_prefix_and_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    plain, settings = find_model(folder), find_model("hf:model?truncate_dim=256&dtype=bfloat16&modalities=image,text")
    assert plain is not None
    assert settings is not None
    assert (plain.folder, plain.library, plain.settings) == (folder, "transformers", {})
    assert settings.settings == {"truncate_dim": 256, "dtype": "bfloat16", "modalities": "image,text"}
    assert str(plain) == str(folder)
    assert str(settings) == f"hf:{folder}?truncate_dim=256&dtype=bfloat16&modalities=image,text"
    assert str(find_model(str(settings))) == str(settings)
    assert str(find_model("st:model")) == f"st:{folder}"
    assert find_model(tmp_path / "space.safetensors") is None
    for name in ("hf:model?truncate_dim", "hf:model?a.b=1"):
        with pytest.raises(CheckpointError, match="is not a setting; an example is truncate_dim=256"):
            find_model(name)


def test_settings_apply_to_the_encoders(tmp_path):
    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    space = load(f"hf:{folder}?modalities=text,audio&max_seconds=2.5&dtype=bfloat16")
    assert space.modalities == ("audio", "text")
    assert space.encoder("audio").max_seconds == 2.5
    assert {weight.dtype for weight in space.parameters()} == {torch.bfloat16}
    full = sum(weight.numel() for weight in load(folder).parameters())
    assert sum(weight.numel() for weight in space.parameters()) < full, "the image tower is not loaded"
    embedding = space.encode("a dog barks")
    assert embedding.dtype == np.float32
    assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-5)
    for query, error, message in [
        ("modalities=video", CheckpointError, "modality 'video' is unknown; known: audio, image, text"),
        ("dimension=3", RecipeError, "key 'dimension' is unknown; known: .*truncate_dim"),
        ("truncate_dim=many", RecipeError, "truncate_dim = 'many': must be an integer"),
        ("truncate_dim=5", RecipeError, "the model was trained for 768, 512, 256, 128"),
        ("dtype=float16", RecipeError, "many models overflow in float16"),
        ("max_seconds=-1", RecipeError, "max_seconds = -1.0: must be"),
    ]:
        with pytest.raises(error, match=message):
            load(f"hf:{folder}?{query}")


def test_truncated_embeddings_have_length_one(tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    full = load(folder).encode("a dog barks")
    with pytest.warns(UserWarning, match="does not declare to which dimensions"):
        space = load(f"hf:{folder}?truncate_dim=4")
    assert space.recipe.space.embed_dim == 4
    assert np.allclose(space.encode("a dog barks"), full[:4] / np.linalg.norm(full[:4]), atol=1e-6)


def test_a_hub_name_loads_from_the_cache(tmp_path, hub):
    folder = tiny_joint_models.save_model("clip", tmp_path / "model")
    expected = load(folder).encode("a dog barks")
    snapshot = hub(folder, "owner/model", revision="v1")
    for name in ("hf:owner/model?revision=v1", f"hf:owner/model?revision={COMMIT}"):
        assert resolve_path(name) == snapshot
        assert np.allclose(load(name).encode("a dog barks"), expected, atol=1e-6)
        assert load(name).name_or_path == str(snapshot)
    assert compute_fingerprint("hf:owner/model?revision=v1") == compute_fingerprint(snapshot)
    with pytest.raises(CheckpointError, match="hf:owner/other: the Hugging Face hub cannot be reached"):
        load("hf:owner/other")


def test_a_model_of_sentence_transformers_loads_from_the_cache(tmp_path, hub):
    pytest.importorskip("sentence_transformers")
    folder = save_text_model(tmp_path)
    expected = load(f"st:{folder}").encode("a dog barks")
    hub(folder, "owner/model")
    space = load("st:owner/model")
    assert space.modalities == ("text",)
    assert np.allclose(space.encode("a dog barks"), expected, atol=1e-6)


def test_the_similarity_of_the_model_is_that_of_the_space(tmp_path):
    pytest.importorskip("sentence_transformers")
    spaces = {}
    for name in ("cosine", "dot"):
        folder = save_text_model(tmp_path / name, similarity_fn_name=name)
        spaces[name] = load(f"st:{folder}").recipe.space
    assert (spaces["cosine"].similarity.name, spaces["cosine"].geometry) == ("cosine", "sphere")
    assert (spaces["dot"].similarity.name, spaces["dot"].geometry) == ("dot", "free")
    folder = save_text_model(tmp_path / "far", similarity_fn_name="euclidean")
    with pytest.raises(CheckpointError, match="compares embeddings by euclidean; use a model with cosine or dot"):
        load(f"st:{folder}")


def test_fingerprints_depend_on_files_library_and_settings(tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    names = [str(folder), f"st:{folder}", f"hf:{folder}?truncate_dim=4", f"hf:{folder}?truncate_dim=8"]
    fingerprints = [compute_fingerprint(name) for name in names]
    assert len(set(fingerprints)) == 4
    assert compute_fingerprint(f"hf:{folder}") == fingerprints[0]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert compute_fingerprint(folder) != fingerprints[0]


def break_weights(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:3000])


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


def pickle_weights(folder):
    torch.save({}, folder / "pytorch_model.bin")
    remove_weights(folder)


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def add_code(folder):
    (folder / "code.py").write_text("raise SystemExit('ran')")
    edit_config(folder, model_type="foreign", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})


def drop_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"logit_scale": "model-00001-of-00002.safetensors", "text": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def overflow(folder):
    from safetensors.torch import load_file, save_file

    weights = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    weights["text_projection.weight"] *= 1e6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_weights, "the weights are incomplete or damaged: delete them and download the model again"),
        (remove_weights, r"no \*.safetensors in the folder; .*The download is incomplete"),
        (pickle_weights, r"no \*.safetensors in the folder; .*Pickled weights are not loaded"),
        (drop_shard, "the weights are incomplete or damaged: delete them and download the model again"),
        (add_code, "the model contains code, which triptych does not run"),
        (
            overflow,
            "text_projection.weight contain NaN or infinity; float16 is too small .* use the float32 or bfloat16",
        ),
        (
            lambda folder: edit_config(folder, model_type="foreign"),
            "its model_type is unknown to the installed version",
        ),
        (lambda folder: edit_config(folder, model_type=None), "config.json belongs to another library"),
        (lambda folder: (folder / "config.json").write_text("{"), "no readable config.json"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "no readable config.json"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{}"), "its preprocessing fails: Unk token"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no readable tokenizer in this folder"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "no readable image processor in this folder"),
    ],
)
def test_damaged_models_raise_one_clear_error(damage, message, tmp_path):
    folder = tiny_models.clip(tmp_path / "clip")
    damage(folder)
    with pytest.raises((CheckpointError, RecipeError), match=message):
        load(folder)


def test_float16_weights_that_are_finite_are_computed_in_float32(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny_joint_models.save_model("embedding_gemma2", tmp_path / "model")
    expected = load(folder).encode("a dog barks")
    weights = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, dtype="float16")
    space = load(folder)
    assert {weight.dtype for weight in space.parameters()} == {torch.float32}
    assert np.allclose(space.encode("a dog barks"), expected, atol=0.02)


def test_an_interrupted_download_is_explained(tmp_path, hub):
    folder = tiny_models.clip(tmp_path / "clip")
    (folder / "model.safetensors").unlink()
    snapshot = hub(folder, "owner/model")
    (snapshot.parent.parent / "blobs" / "abc.incomplete").write_bytes(b"half of the weights")
    with pytest.raises(RecipeError, match="The download is incomplete: connect to the network and download the model"):
        load("hf:owner/model")


def test_folders_that_are_no_models(tmp_path, run_dir):
    with pytest.raises(CheckpointError, match=r"no space.safetensors in this folder, and no joint model"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="only a joint model has settings"):
        load(f"hf:{run_dir}?truncate_dim=4")
    assert resolve_path(f"hf:{run_dir}") == resolve_path(run_dir)
    with pytest.raises(CheckpointError, match="'bert', which has one modality or no embeddings"):
        load(tiny_models.bert(tmp_path / "bert"))


def test_a_space_of_a_joint_model_embeds_files(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    space = load(tiny_joint_models.save_model("siglip2", tmp_path / "model"))
    features = space.embed_one(Source("image", tmp_path / "a.png"))
    assert features.embedding.shape == (1, 16)
    assert torch.allclose(features.embedding.norm(dim=1), torch.ones(1))
