"""The starter space: loading without training, missing weights, collections, and training from it."""

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from PIL import Image

from tests.conftest import have_identical_weights
from tests.heads.stub_classifier import StubClassifier
from triptych import checkpoint
from triptych.encoders import ENCODERS
from triptych.encoders.weights import FOLDER_VARIABLE
from triptych.errors import CheckpointError, RecipeError, UsageError
from triptych.explain import explain, list_class_weights
from triptych.interfaces import Source, Waveform
from triptych.phrases import generate_phrases
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.space import Space
from triptych.starter import STARTER, find_missing_modalities, initialise_heads, load_starter
from triptych.training.loop import train

COMMAND = "efficientat_mn04: its weights are missing; run: triptych encoders fetch efficientat_mn04"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def starter():
    for component in Recipe.load(STARTER).space.encoders.values():
        if reason := ENCODERS[component.name].unavailable_reason():
            pytest.skip(f"{component.name}: {reason}")
    return load_starter()


def make_image() -> Image.Image:
    """Return a picture of a traffic light: three lamps in a dark box."""
    pixels = np.full((260, 260, 3), (150, 190, 235), np.uint8)
    pixels[20:240, 85:175] = 25
    rows, columns = np.mgrid[:260, :260]
    for top, colour in ((60, (235, 30, 30)), (130, (240, 190, 20)), (200, (30, 200, 60))):
        pixels[(rows - top) ** 2 + (columns - 130) ** 2 < 28**2] = colour
    return Image.fromarray(pixels)


def make_tone() -> Waveform:
    """Return a pure tone of 1 kHz, which AudioSet calls sine wave or beep."""
    return Waveform((0.3 * np.sin(2 * np.pi * 1000 * np.arange(64_000) / 32_000)).astype(np.float32), 32_000)


def test_the_starter_embeds_all_modalities_and_its_vectors_do_not_depend_on_the_batch(starter):
    tone = make_tone()
    inputs = ["a traffic light", make_image(), (tone.samples, tone.rate), "rain on a tin roof"]
    together = starter.encode(inputs)
    assert together.shape == (4, 384)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-5)
    for value, embedding in zip(inputs, together, strict=True):
        assert starter.encode(value) == pytest.approx(embedding, abs=1e-5)
    scores = starter.similarity(starter.encode(["a traffic light", "a bowl of soup", "a horse"]), together[1:2])
    assert int(scores.argmax()) == 0


def test_the_starter_is_saved_and_loaded_like_any_space(starter, tmp_path):
    starter.save_pretrained(tmp_path / "copy")
    copied = checkpoint.load(tmp_path / "copy")
    assert have_identical_weights(starter, copied)
    image = make_image()
    assert np.array_equal(copied.encode([image, "a bell"]), starter.encode([image, "a bell"]))
    assert checkpoint.compute_fingerprint(STARTER) == checkpoint.compute_fingerprint(STARTER)
    assert checkpoint.load(STARTER).name_or_path == STARTER


def test_without_audio_weights_the_starter_has_images_and_texts_and_names_the_command(
    starter, tmp_path, monkeypatch, capsys
):
    fingerprint = checkpoint.compute_fingerprint(STARTER)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "empty"))
    assert find_missing_modalities() == {"audio": COMMAND}
    space = checkpoint.load(STARTER)
    assert space.modalities == ("image", "text")
    assert f"the starter space has no audio: {COMMAND}" in capsys.readouterr().err
    with pytest.raises(UsageError, match=f"this space has no encoder for 'audio'; {COMMAND}"):
        space.encoder("audio")
    inputs = [make_image(), "a bell"]
    assert np.array_equal(space.encode(inputs), starter.encode(inputs)), "vectors depend on the missing weights"
    assert checkpoint.compute_fingerprint(STARTER) == fingerprint
    monkeypatch.setattr(type(starter.encoder("text")), "unavailable_reason", classmethod(lambda _: "run: this"))
    with pytest.raises(CheckpointError, match=r"starter: .*minilm: run: this"):
        load_starter()


def test_a_collection_grows_when_audio_weights_are_added(starter, tmp_path, monkeypatch):
    media, collection = tmp_path / "media", tmp_path / "collection"
    media.mkdir()
    make_image().save(media / "light.png")
    tone = make_tone()
    soundfile.write(media / "tone.wav", tone.samples, tone.rate)
    with monkeypatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path / "empty"))
        result = Collection(collection, STARTER).add(media, show_progress=False)
        assert result.added == 1
        skipped = (collection / "not-indexed.tsv").read_text()
        assert "tone.wav\tthe space has no audio encoder" in skipped
    result = Collection(collection, starter).add(media, show_progress=False)
    assert (result.added, result.unchanged) == (1, 1)
    (hit,) = Collection(collection).search("a beep", k=1)
    assert hit.item.source.modality == "audio"


def test_an_explanation_names_the_classes_of_an_image_and_of_audio(starter, tmp_path):
    make_image().save(tmp_path / "light.png")
    tone = make_tone()
    soundfile.write(tmp_path / "tone.wav", tone.samples, tone.rate)
    image, audio = Source("image", tmp_path / "light.png"), Source("audio", tmp_path / "tone.wav")
    encoder = starter.encoder("image")
    parts, _ = encoder(encoder.prepare(image)[None], torch.ones(1, 1, dtype=torch.bool))
    likeliest = encoder.class_names()[int(encoder.class_probabilities(parts.mean(dim=1)).argmax())]
    assert list_class_weights(starter, image, 1)[0][0] == likeliest
    assert list_class_weights(starter, audio, 1)[0][0] in {"Sine wave", "Beep, bleep"}
    assert list_class_weights(starter, Source("text", "a bell")) == []
    query = Source("text", "traffic lights")
    explanation = explain(starter, query, image)
    assert not explanation.query.classes
    assert any(c.name.startswith("traffic light") for c in explanation.hit.classes)
    score = float(starter.scores(starter.embed_one(query), starter.embed_one(image)))
    assert explanation.score == pytest.approx(score, abs=1e-5)
    assert float(explanation.contributions.sum()) + explanation.residual == pytest.approx(score, abs=1e-5)


def test_training_starts_from_the_starter_space(starter, tmp_path):
    rows = []
    for index in range(4):
        make_image().rotate(20 * index).save(tmp_path / f"{index}.png")
        rows.append({"image": str(tmp_path / f"{index}.png"), "text": f"traffic lights {index}"})
    overrides = ["training.learning_rate=1e-12", "training.eval_every=0"]
    space = train(STARTER, tmp_path / "run", data=rows, epochs=1, overrides=overrides, show_progress=False)
    trained, expected = (s.heads["image"].get_parameter("class_embeddings") for s in (space, starter))
    similarity = F.cosine_similarity(trained, expected, dim=1)
    assert similarity.min() > 0.8, "without audio classes, only one direction differs"


def test_a_space_without_texts_cannot_name_classes(starter):
    recipe = Recipe.load(STARTER).restrict_to({"image", "audio"})
    space = Space(recipe, {m: starter.encoder(m) for m in ("image", "audio")})
    with pytest.raises(RecipeError, match="class_names: the space has no text encoder"):
        initialise_heads(space, None)


def test_class_embeddings_and_centre_are_those_of_the_text_encoder(starter, monkeypatch):
    """The heads of a space whose audio encoder has two classes, without a cache, compared with single texts."""
    audio, text = StubClassifier(), starter.encoder("text")
    setattr(audio, "class_names", lambda: ("Dog", "Bark"))  # noqa: B010 - a stub with other classes
    setattr(audio, "class_categories", lambda: ("", ""))  # noqa: B010
    overrides = ['space.heads.audio.prompts=["{}"]', "space.heads.audio.decorrelation=0.0"]
    recipe = Recipe.load(STARTER, overrides).restrict_to({"audio", "text"})
    space = Space(recipe, {"audio": audio, "text": text})
    monkeypatch.setattr("triptych.starter.NUM_CENTRE_PHRASES", 3)
    initialise_heads(space, None)
    means = []
    for words in ["dog", "bark", *generate_phrases()[:3]]:
        tokens = text.prepare(Source("text", words))[None]
        means.append(text(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))[0][0].mean(dim=0))
    dog, bark, *phrases = F.normalize(torch.stack(means), dim=1)
    assert torch.allclose(space.heads["text"].get_parameter("centre"), torch.stack(phrases).mean(dim=0), atol=1e-5)
    centre = (dog + bark) / 2
    embeddings = space.heads["audio"].get_parameter("class_embeddings")
    for embedding, single in zip(embeddings, (dog, bark), strict=True):
        assert F.cosine_similarity(embedding, single - centre, dim=0) > 0.999
