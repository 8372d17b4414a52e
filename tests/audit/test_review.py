"""The review page in a real browser: keyboard, saving, loading, applying; on a phone and wide, light and dark."""

import json
import shutil
import subprocess
import sys
from functools import partial

import pytest
from playwright.sync_api import sync_playwright

from tests.data.manifest_files import save
from tests.data.source_copies import WAV, picture, put
from triptych.audit.audit import identity
from triptych.audit.findings import Suspect
from triptych.audit.review import write_page
from triptych.data import manifest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
EVIL = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--no-first-run", *QUIET])
        yield found
        found.close()


@pytest.fixture
def page_file(tmp_path):
    """A manifest with three modalities, and the page about four suspects in it, in a folder beside it."""
    rows = []
    for i in range(4):
        put(tmp_path / "media" / f"no. {i} é#%.png", picture(40 * i))
        put(tmp_path / "media" / f"{i}.wav", WAV)
        words = EVIL if i == 0 else f"thing number {i}"
        rows.append(
            {"id": f"r{i}", "image": f"media/no. {i} é#%.png", "audio": f"media/{i}.wav", "text": [words, f"more {i}"]}
        )
    table = manifest.read(save(tmp_path / "pairs.jsonl", rows))
    make = partial(Suspect, score=0.1, kept=0.01, better_score=0.9, doubt=0.9)
    found = [
        make(0, "wrong", ("image", "text"), "text", None, better=1, better_caption=None),
        make(1, "wrong", ("image", "text"), "text", 1, better=2, better_caption=0),
        make(2, "wrong", ("image", "audio"), "audio", None, better=3, better_caption=None),
        make(3, "near-duplicate", ("image", "text"), "text", None, better=2, better_caption=None),
    ]
    path = tmp_path / "audit" / "review.html"
    write_page(path, identity(table.path), "pairs.jsonl", "about 3 are wrong", found, table.rows)
    return path


@pytest.fixture
def opened(browser, page_file):
    """Opens the page; whatever it complains of fails the test."""
    complaints, contexts = [], []

    def open_page(**how):
        context = browser.new_context(**how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url) if "wav" not in request.url else None)
        page.goto(page_file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def titles(page) -> str:
    return page.locator("main h2").inner_text()


def decisions(page) -> dict[str, str]:
    with page.expect_download() as download:
        page.keyboard.press("e")
    told = json.loads(download.value.path().read_text())
    return {one["key"]: one["action"] for one in told["decisions"]}


def test_the_keyboard_keeps_rejects_swaps_and_undoes(opened):
    page = opened()
    assert titles(page) == "r0"
    page.keyboard.press("s")
    assert titles(page) == "r1"
    page.keyboard.press("r")
    page.keyboard.press("k")
    assert decisions(page) == {"r0|text|": "swap", "r1|text|1": "reject", "r2|audio|": "keep"}
    page.keyboard.press("u")
    assert titles(page) == "r2"
    page.keyboard.press("u")
    assert titles(page) == "r1"
    assert decisions(page) == {"r0|text|": "swap"}
    page.keyboard.press("ArrowLeft")
    assert page.locator(".done").inner_text() == "swapped"
    page.keyboard.press("k")  # another decision on the same, and back
    assert decisions(page) == {"r0|text|": "keep"}
    page.keyboard.press("u")
    assert decisions(page) == {"r0|text|": "swap"}


def test_decisions_outlive_the_page_and_can_be_loaded_elsewhere(opened, tmp_path):
    page = opened()
    page.keyboard.press("r")
    with page.expect_download() as download:
        page.click("#export")
    saved = tmp_path / "saved.json"
    download.value.save_as(saved)
    page.reload()
    assert "1 of 4 decided" in page.locator("#where").inner_text()
    other = opened()
    assert "0 of 4 decided" in other.locator("#where").inner_text()
    other.set_input_files("#import", saved)
    other.wait_for_function("document.getElementById('where').textContent.includes('1 of 4 decided')")
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "audit": "another"}))
    other.set_input_files("#import", saved)
    other.wait_for_function("document.getElementById('said').textContent.includes('about another audit')")


def test_both_candidates_are_shown_and_play(opened):
    page = opened()
    shown = page.locator(".card.now p").all_inner_texts()
    assert shown[0] == EVIL  # as text, not as a page
    assert page.evaluate("window.broken") is None
    assert page.locator(".card.better p.proposed").all_inner_texts() == ["thing number 1", "more 1"]
    page.wait_for_function("document.querySelector('.card.anchor img').naturalWidth > 0")
    page.keyboard.press("ArrowRight")
    assert page.locator(".card.now p.doubted").all_inner_texts() == ["more 1"]
    assert page.locator(".card.better p.proposed").all_inner_texts() == ["thing number 2"]
    page.keyboard.press("ArrowRight")
    for number, card in ((2, "now"), (3, "better")):
        page.wait_for_function(f"document.querySelector('.card.{card} audio').readyState >= 1")
        page.evaluate(
            f"document.querySelector('.card.{card} audio').addEventListener('play', () => window.heard = '{card}')"
        )
        page.keyboard.press(str(number))
        page.wait_for_function(f"window.heard === '{card}'")
    page.keyboard.press("ArrowRight")
    assert page.locator("#swap").is_disabled()  # a twin is no better
    page.keyboard.press("s")
    assert "0 of 4 decided" in page.locator("#where").inner_text()


def test_filters_show_what_is_open(opened):
    page = opened()
    page.select_option("#filter", "open")
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert titles(page) == "r2"
    assert page.locator("#where").inner_text().startswith("1 of 2")
    page.select_option("#filter", "near-duplicate")
    assert titles(page) == "r3"
    page.select_option("#filter", "open")
    page.keyboard.press("r")
    page.keyboard.press("r")
    assert "Nothing left here" in page.locator("main").inner_text()
    page.keyboard.press("u")
    assert titles(page) == "r3"


@pytest.mark.parametrize("size", [(390, 844), (1600, 900)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phones_and_wide_screens_in_light_and_dark(opened, size, scheme):
    page = opened(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=size[0] < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 60)")
    assert dark == (scheme == "dark")
    for name in ("keep", "reject", "swap", "undo"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["height"] >= 40
        assert box["y"] + box["height"] <= size[1]  # at hand without scrolling
    page.click("#reject")
    assert titles(page) == "r1"
    page.click("#help")
    page.keyboard.press("k")  # while the keys are explained, they do nothing
    page.keyboard.press("Escape")
    assert "1 of 4 decided" in page.locator("#where").inner_text()


def test_people_who_cannot_see_it_can_use_it(opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        assert [found["id"] for found in axe.run(page).response["violations"]] == []


def test_what_was_decided_is_applied(opened, page_file, tmp_path):
    page = opened()
    page.keyboard.press("s")
    page.keyboard.press("s")
    page.keyboard.press("r")
    with page.expect_download() as download:
        page.keyboard.press("e")
    download.value.save_as(tmp_path / "decisions.json")
    command = ["audit", "pairs.jsonl", "--apply", "decisions.json", "-o", "new.csv"]
    done = subprocess.run(
        [sys.executable, "-m", "triptych", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    rows = {row.id: row for row in manifest.read(tmp_path / "new.csv").rows}
    assert rows["r0"].texts == ("thing number 1", "more 1")
    assert rows["r1"].texts == ("thing number 1", "thing number 2")
    assert rows["r2"].audio is None
    assert rows["r2"].texts == ("thing number 2", "more 2")
    assert rows["r3"].texts == ("thing number 3", "more 3")
