"""Recipes: error messages, round trips through TOML, and overrides."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import RecipeError, UsageError
from triptych.recipe import Component, Recipe
from triptych.recipe_files import list_bundled_recipes

SMALL_RECIPE = """
name = "small"
[space.similarity]
name = "cosine"
[space.encoders]
audio = { name = "audio_cnn" }
text = { name = "text_transformer" }
[[objectives]]
name = "infonce"
pairs = [["audio", "text"]]
"""


@pytest.mark.parametrize("name", list_bundled_recipes())
def test_bundled_recipes_load_and_round_trip(name):
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.description
    assert Recipe.parse(recipe.to_toml()) == recipe


def test_to_toml_writes_every_default():
    text = Recipe.parse(SMALL_RECIPE).to_toml()
    for line in ("temperature = 0.07", 'geometry = "sphere"', "mels = 64", "weight_decay = 0.01", "seed = 0"):
        assert line in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "training: key 'epoch' is unknown; known: batch_size, encoder_lr_scale, epochs"),
        ("trainin.epochs=3", "the recipe: key 'trainin' is unknown; known: data, description, name"),
        ("space.similarity.name=cosin", "similarity 'cosin' is unknown; known: cosine, "),
        ("space.similarity.margin=1", "space.similarity: key 'margin' is unknown; known: name"),
        ("space.similarity={}", "space.similarity: the similarity's name is missing; known: cosine"),
        ("space.geometry=cube", "value 'cube' is unknown; known: ball, free, sphere"),
        ("space.encoders.audio.name=image_cnn", "space.encoders.audio: 'image_cnn' is for image"),
        ("space.encoders.smell.name=nose", "space.encoders: key 'smell' is unknown; known: audio, image, text"),
        ("space.encoders.audio.n_mels=many", "space.encoders.audio.n_mels = 'many': must be an integer"),
        ("space.encoders.audio=3", "space.encoders.audio = 3: must be a table"),
        ("training.epochs=0", "training.epochs = 0: must be between 1 and"),
        ("training.epochs=2.5", "training.epochs = 2.5: must be an integer"),
        ("training.epochs=true", "training.epochs = True: must be an integer"),
        ("training.learning_rate=nan", "training.learning_rate = nan: must be between"),
        ("training.batch_size=1", "training.batch_size = 1: must be between 2 and"),
        ("objectives.0.name=infonc", "objective 'infonc' is unknown"),
        ("objectives.0.tau=1", "objectives.0: key 'tau' is unknown; known: "),
        ("objectives.0.similarity.name=cosin", "objectives.0.similarity: similarity 'cosin' is unknown"),
        ("objectives.0.pairs=[]", "objectives.0: pairs are missing"),
        ("objectives.0.pairs=[['audio','image']]", "[audio, image]: expected two of audio, text"),
        ("objectives.0.pairs=[['text','audio']]", "[text, audio]: write the pair as [audio, text]"),
        ("objectives.0.pairs=[['audio']]", "objectives.0.pairs = ['audio']: must be a list of the form"),
        ("objectives.7.weight=1", "'7' is not an index from 0 to 0"),
        ("objectives=[]", "objectives: need at least one"),
        ("training", "expected section.key=value"),
        ("objectives.0.weight=nan", "objectives.0.weight = nan: must be between"),
        ("space.encoders.image.name=image_cnn", "space.encoders.image: no objective trains this encoder"),
        ("objectives.².weight=1", "is not an index from"),
        ("name=../up", "name = '../up': must be letters"),
        ("objectives.0={name=triplet}", "not a valid TOML table or list; write strings in quotes"),
        ("objectives.0=triplet", "objectives.0 = 'triplet': must be a table"),
        ("objectives.0={temperature=0.1}", "objectives.0: the objective's name is missing; known: align_uniform"),
        ("space.similarity=cosin", "space.similarity: similarity 'cosin' is unknown; known: cosine"),
        (
            "space.head=mpl",
            "space.head: head 'mpl' is unknown; known: centred, class_names, linear, mlp, none; did you mean 'mlp'",
        ),
        ("name.x=3", "name is a value, not a table"),
        ("name.x.y=3", "'x' cannot be set, because"),
    ],
)
def test_errors_name_the_key_and_the_allowed_values(override, message):
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(SMALL_RECIPE, [override])
    assert message in str(caught.value)


def test_overrides_set_values_of_every_type():
    recipe = Recipe.parse(
        SMALL_RECIPE,
        [
            "training.epochs=3",
            "training.learning_rate=1",
            "data.manifest=a folder/pairs.csv",
            "space.encoders.audio.n_mels=32",
            "objectives.0.temperature=0.5",
            "objectives.0.learn_temperature=false",
            "objectives.0.similarity.name=cosine",
        ],
    )
    assert recipe.training.epochs == 3
    assert isinstance(recipe.training.learning_rate, float)
    assert recipe.data.manifest == "a folder/pairs.csv"
    assert recipe.space.encoders["audio"].settings["n_mels"] == 32
    assert recipe.objectives[0].settings["temperature"] == 0.5
    assert recipe.objectives[0].settings["learn_temperature"] is False
    assert recipe.objectives[0].similarity == Component("cosine")
    assert Recipe.parse(recipe.to_toml()) == recipe


def test_a_table_replaces_an_objective_but_keeps_its_pairs_weight_and_similarity():
    before = ["objectives.0.weight=0.5", "objectives.0.similarity.name=dot", "objectives.0.temperature=0.3"]
    (kept,) = Recipe.parse(SMALL_RECIPE, [*before, 'objectives.0={name="triplet", margin=0.4}']).objectives
    assert (kept.name, kept.pairs, kept.weight) == ("triplet", (("audio", "text"),), 0.5)
    assert kept.similarity == Component("dot")
    assert kept.settings["margin"] == 0.4
    assert "temperature" not in kept.settings
    override = 'objectives.0={name="infonce", weight=2.0, pairs=[["image", "text"]], similarity={name="cosine"}}'
    image = "space.encoders={image={name='image_cnn'}, text={name='text_transformer'}}"
    (replaced,) = Recipe.parse(SMALL_RECIPE, [*before, image, override]).objectives
    assert (replaced.pairs, replaced.weight, replaced.similarity) == ((("image", "text"),), 2.0, Component("cosine"))
    assert replaced.settings["temperature"] == 0.07


def test_a_table_replaces_a_similarity_or_an_encoder_with_its_settings():
    overrides = ["space.encoders.text.num_layers=1", "space.encoders.text={name='text_transformer', num_heads=2}"]
    overrides += ["space.similarity={name='mahalanobis', embed_dim=16}", "space.similarity={name='dot'}"]
    space = Recipe.parse(SMALL_RECIPE, overrides).space
    assert space.similarity == Component("dot")
    text = space.encoders["text"].settings
    assert (text["num_heads"], text["num_layers"]) == (2, 2), "num_layers has its default again"
    by_name = Recipe.parse(SMALL_RECIPE, ["space.similarity=dot", "space.encoders.audio=speech_cnn"]).space
    assert (by_name.similarity, by_name.encoders["audio"].name) == (Component("dot"), "speech_cnn")


@pytest.mark.parametrize("text", ["", "name = ", "[space]\nembed_dim = 3", "objectives = 3\n[space]", "\x00"])
def test_errors_name_the_broken_file(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"mine\.toml"):
        Recipe.load(path)


def test_an_unknown_recipe_name_lists_the_bundled_recipes():
    with pytest.raises(RecipeError, match=r"recipe 'trimodel' is unknown; known: .*did you mean 'trimodal'"):
        Recipe.load("trimodel")


@given(st.text(), st.integers(2, 1 << 20), st.floats(1e-6, 1e2))
def test_any_values_round_trip(description, batch_size, learning_rate):
    recipe = Recipe.parse(
        SMALL_RECIPE, [f"training.batch_size={batch_size}", f"training.learning_rate={learning_rate!r}"]
    )
    changed = Recipe(recipe.name, recipe.space, recipe.objectives, description, recipe.data, recipe.training)
    assert Recipe.parse(changed.to_toml()) == changed


def test_distill_requires_a_teacher_with_class_probabilities():
    assert Recipe.load("shre").data.teacher == "efficientnet_lite0"
    with pytest.raises(RecipeError, match=r"distill needs a teacher: set data\.teacher to one of efficientnet_lite0"):
        Recipe.load("shre", ["data.teacher="])
    with pytest.raises(RecipeError, match="teacher 'image_cnn' is unknown; known: efficientnet_lite0"):
        Recipe.load("shre", ["data.teacher=image_cnn"])


def test_a_setting_may_be_a_number_or_a_string():
    assert Recipe.load("mltm", ["objectives.0.mass=0.5"]).objectives[0].settings["mass"] == 0.5
    assert Recipe.load("mltm_partial").objectives[0].settings["mass"] == "estimate"
    with pytest.raises(RecipeError, match=r"objectives\.0\.mass: value 'guess' is unknown; known: estimate"):
        Recipe.load("mltm", ["objectives.0.mass=guess"])


def test_with_manifests_replaces_the_manifest_and_keeps_extra_ones():
    recipe = Recipe.load("trimodal", ["data.manifest=own.csv", 'data.extra_manifests=["b.csv", "c.csv"]'])
    data = recipe.with_manifests(["a.csv", "b.csv"], allow_outside=True).data
    assert (data.manifest, data.extra_manifests, data.allow_outside) == ("a.csv", ("b.csv", "c.csv"), True)
    assert recipe.with_manifests([]) == recipe
    assert recipe.resolve_manifest() == Path("own.csv")
    assert recipe.resolve_manifest(Path("other.csv")) == Path("other.csv")
    with pytest.raises(UsageError, match="names no manifest; give --data MANIFEST"):
        Recipe.load("trimodal").resolve_manifest()
