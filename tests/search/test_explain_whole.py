"""Parts that lie nowhere (marks around a text, a class token, a whole window): one part at the end, and all adds up."""

import pytest
import torch

from tests.conftest import QUICK
from triptych.contracts import Source
from triptych.data import manifest
from triptych.data.loader import collate, source_of
from triptych.recipe import Recipe
from triptych.search.explain import explain
from triptych.space import Space

pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
from tests.encoders import tiny_models

pytestmark = pytest.mark.slow

KINDS = {
    "cosine": [],
    "misa": ["space.similarity={name='matchmap', kind='misa'}"],
    "words": ["space.similarity={name='word_region'}"],
    "deep": ["space.head='mlp'", "space.hidden=48", "space.pooling='mean_max'", "space.shared=40"],
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Networks that add marks to a text, a class token to a picture, and hear a whole window of a sound at once."""
    folder = tmp_path_factory.mktemp("models")
    models = {
        "text": tiny_models.bert(folder / "bert"),
        "image": tiny_models.vit(folder / "vit"),
        "audio": tiny_models.spectrogram_transformer(folder / "ast"),
    }
    more = {"audio": ", seconds=0.5"}
    return [
        f"space.encoders.{modality}={{name='hf_{modality}', model='{path}'{more.get(modality, '')}}}"
        for modality, path in models.items()
    ]


@pytest.fixture(scope="module", params=KINDS)
def space(request, encoders, world):
    torch.manual_seed(0)
    settings = [setting for setting in QUICK if "encoders" not in setting]
    return Space(
        Recipe.load("trimodal", [*settings, *encoders, f"data.manifest={world}", *KINDS[request.param]])
    ).eval()


def test_what_lies_nowhere_is_one_part_at_the_end(space, world):
    row = manifest.read(world).rows[0]
    words, picture, sound = Source("text", "a cat"), source_of(row, "image"), source_of(row, "audio")
    for query, hit in ((words, picture), (picture, words), (words, sound), (sound, picture)):
        told = explain(space, query, hit)
        assert float(told.contributions.sum()) + told.rest == pytest.approx(told.score, abs=1e-4)
        assert told.contributions.shape == told.heat.shape == (len(told.query.places), len(told.hit.places))
        for side in (told.query, told.hit):
            size = 4 if side.modality == "image" else 2
            assert [len(place) for place in side.places] == [size] * (len(side.places) - 1) + [0]
    told = explain(space, words, sound)
    assert [str(told.query.text)[int(p[0]) : int(p[1])] for p in told.query.places[:-1]] == ["a", "cat"]
    assert told.hit.places == [()]
    assert told.hit.span == (0.0, 0.5), "what was heard, although no part tells where it lies"


def parts(space, source):
    """Every part of a source as the space has it, (P, D), from the network itself: what is cached is rounded."""
    encoder = space.encoder(source.modality)
    return space(source.modality, *encoder(*collate([encoder.prepare(source)])), given="parts").parts[0].double()


def test_the_share_of_the_whole_is_the_sum_of_the_marks(encoders, world):
    """By loops over the pieces: the score of a cosine is Σ_pq <h(x_p), h(y_q)> / (P·Q·|mean h(x)|·|mean h(y)|)."""
    torch.manual_seed(0)
    settings = [setting for setting in QUICK if "encoders" not in setting]
    space = Space(Recipe.load("trimodal", [*settings, *encoders, f"data.manifest={world}"])).eval()
    words, picture = Source("text", "a cat"), source_of(manifest.read(world).rows[0], "image")
    told = explain(space, words, picture)
    with torch.inference_mode():
        a, b = (parts(space, source) for source in (words, picture))
    places = space.encoder("text").places(words, len(a))
    marks = [p for p, place in enumerate(places) if not place]
    assert len(marks) == 2
    scale = len(a) * len(b) * float(a.mean(0).norm() * b.mean(0).norm())
    expected = sum(float(a[p] @ b[q]) for p in marks for q in range(len(b))) / scale
    assert float(told.contributions[-1].sum()) == pytest.approx(expected, abs=1e-5)
