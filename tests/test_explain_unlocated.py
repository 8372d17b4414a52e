"""Parts without a location (special tokens, a class token, a whole window) are merged into one last part."""

import pytest
import torch

from tests.conftest import TINY_OVERRIDES
from triptych.data import manifest
from triptych.data.loader import collate, source_of
from triptych.explain import explain
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.space import Space

pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
from tests.encoders import tiny_models

pytestmark = pytest.mark.slow

SPACES = {
    "cosine": [],
    "misa": ["space.similarity={name='matchmap', reduction='misa'}"],
    "words": ["space.similarity={name='word_region'}"],
    "deep": ["space.head={name='mlp', hidden_dim=48}", "space.pooling='mean_max'", "space.shared_hidden_dim=40"],
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Networks with special tokens for text, a class token for images, and one part per audio window."""
    folder = tmp_path_factory.mktemp("models")
    models = {
        "text": tiny_models.bert(folder / "bert"),
        "image": tiny_models.vit(folder / "vit"),
        "audio": tiny_models.spectrogram_transformer(folder / "ast"),
    }
    more = {"audio": ", max_seconds=0.5"}
    return [
        f"space.encoders.{modality}={{name='hf_{modality}', model='{path}'{more.get(modality, '')}}}"
        for modality, path in models.items()
    ]


@pytest.fixture(scope="module", params=SPACES)
def space(request, encoders, synthetic_manifest):
    torch.manual_seed(0)
    settings = [setting for setting in TINY_OVERRIDES if "encoders" not in setting]
    return Space(
        Recipe.load("trimodal", [*settings, *encoders, f"data.manifest={synthetic_manifest}", *SPACES[request.param]])
    ).eval()


def test_unlocated_parts_are_merged_into_one_last_part(space, synthetic_manifest):
    row = manifest.read(synthetic_manifest).rows[0]
    text, image, audio = Source("text", "a cat"), source_of(row, "image"), source_of(row, "audio")
    for query, hit in ((text, image), (image, text), (text, audio), (audio, image)):
        explanation = explain(space, query, hit)
        assert float(explanation.contributions.sum()) + explanation.residual == pytest.approx(
            explanation.score, abs=1e-4
        )
        assert (
            explanation.contributions.shape
            == explanation.attribution.shape
            == (len(explanation.query.part_locations), len(explanation.hit.part_locations))
        )
        for side in (explanation.query, explanation.hit):
            size = 4 if side.modality == "image" else 2
            assert [len(region) for region in side.part_locations] == [size] * (len(side.part_locations) - 1) + [0]
    explanation = explain(space, text, audio)
    assert [str(explanation.query.text)[int(p[0]) : int(p[1])] for p in explanation.query.part_locations[:-1]] == [
        "a",
        "cat",
    ]
    assert explanation.hit.part_locations == [()]
    assert explanation.hit.span == (0.0, 0.5), "the encoded range, although no part has a location"


def project_parts(space, source):
    """Return all projected parts of a source, (P, D), without the cache, which rounds."""
    encoder = space.encoder(source.modality)
    return space(source.modality, *encoder(*collate([encoder.prepare(source)])), input_kind="parts").parts[0].double()


def test_the_unlocated_contribution_is_the_sum_over_special_tokens(encoders, synthetic_manifest):
    """With loops over the tokens: the score of a cosine is Σ_pq <h(x_p), h(y_q)> / (P·Q·|mean h(x)|·|mean h(y)|)."""
    torch.manual_seed(0)
    settings = [setting for setting in TINY_OVERRIDES if "encoders" not in setting]
    space = Space(Recipe.load("trimodal", [*settings, *encoders, f"data.manifest={synthetic_manifest}"])).eval()
    text, image = Source("text", "a cat"), source_of(manifest.read(synthetic_manifest).rows[0], "image")
    explanation = explain(space, text, image)
    with torch.inference_mode():
        a, b = (project_parts(space, source) for source in (text, image))
    locations = space.encoder("text").part_locations(text, len(a))
    special_tokens = [p for p, location in enumerate(locations) if not location]
    assert len(special_tokens) == 2
    scale = len(a) * len(b) * float(a.mean(0).norm() * b.mean(0).norm())
    expected = sum(float(a[p] @ b[q]) for p in special_tokens for q in range(len(b))) / scale
    assert float(explanation.contributions[-1].sum()) == pytest.approx(expected, abs=1e-5)
