"""Composite spaces: scores are exactly those of the members, whatever the models; the layout of the vectors."""

import numpy as np
import pytest
import torch

import triptych
from triptych.bridge import Bridge
from triptych.composite import CALIBRATED_PAIRS, Calibration, join_spaces, select_encoder
from triptych.data import manifest
from triptych.data.cache import Cache, fingerprint_encoder
from triptych.data.loader import sources_of
from triptych.encoders.unavailable import UnavailableEncoder
from triptych.errors import CheckpointError, UsageError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.space import Space

TEXTS = [
    Source("text", t) for t in ("a dog barks", "two red bells", "rain falls on the roof", "birds sing slowly loudly")
]


@pytest.fixture(scope="module")
def runs(image_text_run, audio_text_run):
    return triptych.load(image_text_run), triptych.load(audio_text_run)


@pytest.fixture(scope="module")
def media(synthetic_manifest):
    rows = manifest.read(synthetic_manifest).rows[:5]
    return {m: [s for row in rows for s in sources_of(row, m)] for m in ("image", "audio")}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
    from tests.encoders import tiny_models

    folder = tmp_path_factory.mktemp("models")
    return triptych.load(tiny_models.clip(folder / "clip")), triptych.load(tiny_models.clap(folder / "clap"))


def embed(space, sources):
    return space.embed(sources, sources[0].modality, with_parts=False).features


def check_scores(members, composite, media, tolerance=1e-6):
    """Check the scores of texts with images and audio, and of images with audio without a bridge."""
    texts = embed(composite, TEXTS)
    for member, modality in zip(members, ("image", "audio"), strict=True):
        items, own_items = embed(composite, media[modality]), embed(member, media[modality])
        expected = member.scores(own_items, embed(member, TEXTS))
        assert torch.allclose(composite.scores(items, texts), expected, atol=tolerance, rtol=0)
        assert torch.allclose(composite.scores(texts, items), expected.T, atol=tolerance, rtol=0)
        assert expected.std() > 1e-3


def test_scores_are_those_of_two_trained_runs(runs, media):
    composite = join_spaces(runs)
    assert composite.modalities == ("image", "audio", "text")
    assert composite.recipe.space.embed_dim == 32 + 24
    check_scores(runs, composite, media)
    assert not composite.scores(embed(composite, media["image"]), embed(composite, media["audio"])).any()


def test_scores_are_those_of_two_pretrained_models(models, media):
    composite = triptych.load("+".join(str(model.name_or_path) for model in models))
    check_scores(models, composite, media)


def test_a_bridge_does_not_change_the_scores_of_texts(runs, media):
    generator = torch.Generator().manual_seed(0)
    bridge = Bridge(*(torch.randn(shape, generator=generator) for shape in ((32, 24), (24, 32), (32,), (24,))))
    composite = join_spaces(runs, bridge)
    check_scores(runs, composite, media)
    images, audio = embed(composite, media["image"]), embed(composite, media["audio"])
    expected = bridge.scores(embed(runs[0], media["image"]).embedding, embed(runs[1], media["audio"]).embedding)
    assert torch.allclose(composite.scores(images, audio), expected, atol=1e-6)


def test_a_calibration_standardises_each_pair_of_modalities(runs, media):
    generator = torch.Generator().manual_seed(0)
    bridge = Bridge(*(torch.randn(shape, generator=generator) for shape in ((32, 24), (24, 32), (32,), (24,))))
    mean, std = torch.tensor([0.3, -0.2, 0.1]), torch.tensor([0.1, 0.5, 0.2])
    plain, calibrated = join_spaces(runs, bridge), join_spaces(runs, bridge, Calibration(mean, std))
    sources = media | {"text": TEXTS}
    for i, pair in enumerate(CALIBRATED_PAIRS):
        a, b = pair.split("-")
        scores, own = (s.scores(embed(s, sources[a]), embed(s, sources[b])) for s in (calibrated, plain))
        assert torch.allclose(scores, (own - mean[i]) / std[i], atol=1e-4)


def test_a_modality_of_several_members_has_the_sum_of_their_scores(run_dir, runs, media):
    members = triptych.load(run_dir), runs[0]
    composite = join_spaces(members)
    scores = composite.scores(embed(composite, media["image"]), embed(composite, TEXTS))
    first, second = (m.scores(embed(m, media["image"]), embed(m, TEXTS)) for m in members)
    assert torch.allclose(scores, first + second, atol=1e-6)


def test_embeddings_do_not_depend_on_the_batch_or_the_cache(models, tmp_path):
    composite = join_spaces(models)
    reference = embed(composite, TEXTS).embedding
    assert torch.allclose(composite.embed(TEXTS, "text", batch_size=1).features.embedding, reference, atol=1e-6)
    cache = Cache(tmp_path)
    for _ in range(2):
        cached = composite.embed(TEXTS, "text", with_parts=False, cache=cache).features.embedding
        assert torch.allclose(cached, reference, atol=1e-6)
    indices, embedded, failures = select_encoder(composite, "text").embed_sources([*TEXTS, Source("text", " ")], cache)
    assert indices == [0, 1, 2, 3]
    assert list(failures) == [Source("text", " ")]
    assert torch.allclose(embedded, reference, atol=1e-6)
    assert composite.encode("a dog barks").shape == (composite.recipe.space.embed_dim,)


def test_each_member_gets_its_own_prompt(models):
    encoder = models[0].encoder("text")
    encoder.prompts = {"query": "two red "}
    try:
        composite = join_spaces(models)
        assert dict(composite.encoder("text").prompts) == {"query": "two red "}
        queries = composite.embed(TEXTS, "text", prompt_name="query", with_parts=False).features.embedding
        layout = select_encoder(composite, "text").layout
        for i, member in enumerate(models):
            own = member.embed(TEXTS, "text", prompt_name="query", with_parts=False).features.embedding
            assert torch.allclose(queries[:, layout.columns(i)], torch.nn.functional.normalize(own), atol=1e-6)
    finally:
        del encoder.prompts


def test_missing_weights_of_one_encoder_do_not_prevent_the_use_of_others(runs, media, audio_text_run):
    broken = triptych.load(audio_text_run)
    feature_dim = broken.encoder("audio").feature_dim
    broken.encoders["audio"] = UnavailableEncoder("audio", feature_dim, 10.0, "the weights are missing")
    composite = join_spaces((runs[0], broken))
    check = composite.scores(embed(composite, media["image"]), embed(composite, TEXTS))
    assert torch.allclose(check, runs[0].scores(embed(runs[0], media["image"]), embed(runs[0], TEXTS)), atol=1e-6)
    with pytest.raises(CheckpointError, match="the weights are missing"):
        composite.encode(str(media["audio"][0].path))


def test_the_fingerprint_of_an_encoder_depends_on_members_and_bridge(runs, run_dir):
    bridge = Bridge(torch.eye(32, 24), torch.eye(24, 32), torch.zeros(32), torch.zeros(24))
    spaces = [join_spaces(runs), join_spaces(runs, bridge), join_spaces((triptych.load(run_dir), runs[1]))]
    fingerprints = [fingerprint_encoder(space.encoder("image")) for space in spaces]
    assert len(set(fingerprints)) == 3
    assert fingerprint_encoder(join_spaces(runs).encoder("image")) == fingerprints[0]


def test_members_need_a_common_modality(image_text_run, audio_text_run):
    members = triptych.load(image_text_run), triptych.load(audio_text_run)
    for member in members:
        del member.encoders["text"]
    with pytest.raises(UsageError, match="embeds image; the other members, audio; members need a common modality"):
        join_spaces(members)


def test_another_similarity_is_refused(tiny_recipe, runs):
    recipe = Recipe.parse(tiny_recipe.to_toml(), ['space.similarity.name="matchmap"'])
    with pytest.raises(UsageError, match="compares by matchmap; a composite space needs cosine or dot"):
        join_spaces((runs[0], Space(recipe)))


def test_a_composite_space_is_not_saved_as_weights(runs, tmp_path):
    with pytest.raises(CheckpointError, match="a composite space has no weights of its own"):
        join_spaces(runs).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_calibration_columns_match_the_formula():
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 5.0])
    columns = {m: Calibration(mean, std).offsets(m).numpy() for m in ("image", "audio", "text")}
    for i, pair in enumerate(CALIBRATED_PAIRS):
        a, b = pair.split("-")
        assert np.dot(columns[a], columns[b]) == pytest.approx(-float(mean[i] / std[i]))
