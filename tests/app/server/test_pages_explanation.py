"""Explanations in Chromium for networks with parts without a location: special tokens, class tokens."""

import shutil

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed (triptych[pretrained])")
pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install playwright")
from playwright.sync_api import expect

from tests.app.server.chromium import needs_chromium, wait_for_hits
from tests.app.server.conftest import run_server
from tests.conftest import TINY_OVERRIDES
from tests.encoders import tiny_models
from triptych.app.server import create_app
from triptych.checkpoint import save
from triptych.recipe import Recipe
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder
from triptych.space import Space

pytestmark = [pytest.mark.slow, needs_chromium]
HAS_ATTRIBUTION = """() => {
    const canvas = document.querySelector(".image-attribution canvas");
    if (canvas.width <= 100) return false;
    // Chromium warns of repeated reads from a canvas that is not made for them, so a copy is read.
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    return copy.getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
}"""


@pytest.fixture(scope="module")
def address(synthetic_manifest, tmp_path_factory):
    """A server with a few files in a space of such networks."""
    folder = tmp_path_factory.mktemp("marked")
    models = {
        "text": tiny_models.bert(folder / "bert"),
        "image": tiny_models.vit(folder / "vit"),
        "audio": tiny_models.spectrogram_transformer(folder / "ast"),
    }
    settings = [setting for setting in TINY_OVERRIDES if "encoders" not in setting]
    settings += [f"space.encoders.{m}={{name='hf_{m}', model='{path}'}}" for m, path in models.items()]
    settings.append("space.encoders.audio.max_seconds=0.5")
    torch.manual_seed(0)
    save(
        Space(Recipe.load("trimodal", [*settings, f"data.manifest={synthetic_manifest}"])), folder / "space.safetensors"
    )
    (folder / "mine").mkdir()
    for name in ("images/000000.png", "images/000001.png", "audio/000000.wav"):
        shutil.copy(synthetic_manifest.parent / name, folder / "mine")
    indexed = Collection(folder / "collection", folder / "space.safetensors")
    indexed.index(items_from_folder(folder / "mine", indexed.space), folder / "mine", show_progress=False)
    with run_server(create_app(indexed)) as url:
        yield url


@pytest.mark.parametrize(("modality", "whole"), [("image", "whole image"), ("audio", "whole audio")])
def test_unlocated_parts_are_shown_and_sum_to_score(open_page, modality, whole):
    page = open_page(f"?text=a+cat&modality={modality}")
    wait_for_hits(page).first.locator(".explain-button").click()
    query, hit = (
        page.locator("#explanation .strip", has=page.locator("h3", has_text=name)) for name in ("query:", "hit:")
    )
    expect(query.locator(".word")).to_have_count(3)
    labels = [text.split("\n")[0] for text in query.locator(".word").all_inner_texts()]
    assert labels == ["a", "cat", "whole text"]
    contributions = query.locator("small").all_inner_texts()
    assert sum(map(float, contributions)) == pytest.approx(
        float(page.locator("#explanation .total").inner_text()), abs=0.002
    )
    assert [text.split("\n")[0] for text in hit.locator(".word").all_inner_texts()] == [whole]
    expect(
        page.locator("#explanation .note", has_text="Whole text: tokens that belong to no single word")
    ).to_be_visible()
    if modality == "image":  # audio that is encoded as one window has no other part
        page.wait_for_function(HAS_ATTRIBUTION)
        hit.locator(".word").focus()
        page.wait_for_function(
            "contributions => [...document.querySelectorAll('#explanation .word small')]"
            ".some((w, i) => w.textContent !== contributions[i])",
            arg=contributions,
        )
        expect(hit.locator(".word")).to_have_attribute("aria-pressed", "true")
