"""The review page in Chromium: keyboard, saving, loading, applying; on a phone and wide, light and dark."""

import json
import shutil
import subprocess
import sys
from functools import partial

import pytest
from playwright.sync_api import sync_playwright

from tests.data.dataset_replicas import WAV, png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.auditing.audit import hash_manifest
from triptych.auditing.review import write_review_page
from triptych.auditing.suspects import Suspect
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
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--no-first-run", *QUIET])
        yield launched
        launched.close()


@pytest.fixture
def page_file(tmp_path):
    """A manifest with three modalities, and the review page of four suspects in it, in a folder beside it."""
    rows = []
    for i in range(4):
        write_file(tmp_path / "media" / f"no. {i} é#%.png", png_bytes(40 * i))
        write_file(tmp_path / "media" / f"{i}.wav", WAV)
        caption = EVIL if i == 0 else f"thing number {i}"
        rows.append(
            {
                "id": f"r{i}",
                "image": f"media/no. {i} é#%.png",
                "audio": f"media/{i}.wav",
                "text": [caption, f"more {i}"],
            }
        )
    table = manifest.read(write_manifest(tmp_path / "pairs.jsonl", rows))
    make_suspect = partial(Suspect, score=0.1, retained_mass=0.01, better_score=0.9, p_wrong=0.9)
    suspects = [
        make_suspect(0, "wrong", ("image", "text"), "text", None, better_row=1, better_caption=None),
        make_suspect(1, "wrong", ("image", "text"), "text", 1, better_row=2, better_caption=0),
        make_suspect(2, "wrong", ("image", "audio"), "audio", None, better_row=3, better_caption=None),
        make_suspect(3, "near-duplicate", ("image", "text"), "text", None, better_row=2, better_caption=None),
    ]
    path = tmp_path / "audit" / "review.html"
    write_review_page(path, hash_manifest(table.path), "pairs.jsonl", "about 3 are wrong", suspects, table.rows)
    return path


@pytest.fixture
def open_review(browser, page_file):
    """Open the page. Console messages and failed requests fail the test."""
    complaints, contexts = [], []

    def open_page(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url) if "wav" not in request.url else None)
        page.goto(page_file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def row_title(page) -> str:
    return page.locator("main h2").inner_text()


def saved_decisions(page) -> dict[str, str]:
    with page.expect_download() as download:
        page.keyboard.press("e")
    document = json.loads(download.value.path().read_text())
    return {decision["key"]: decision["action"] for decision in document["decisions"]}


def test_keyboard_decisions_and_undo(open_review):
    page = open_review()
    assert row_title(page) == "r0"
    page.keyboard.press("s")
    assert row_title(page) == "r1"
    page.keyboard.press("r")
    page.keyboard.press("k")
    assert saved_decisions(page) == {"r0|text|": "swap", "r1|text|1": "reject", "r2|audio|": "keep"}
    page.keyboard.press("u")
    assert row_title(page) == "r2"
    page.keyboard.press("u")
    assert row_title(page) == "r1"
    assert saved_decisions(page) == {"r0|text|": "swap"}
    page.keyboard.press("ArrowLeft")
    assert page.locator(".done").inner_text() == "swapped"
    page.keyboard.press("k")  # change a decision, then undo the change
    assert saved_decisions(page) == {"r0|text|": "keep"}
    page.keyboard.press("u")
    assert saved_decisions(page) == {"r0|text|": "swap"}


def test_decisions_persist_and_can_be_loaded(open_review, tmp_path):
    page = open_review()
    page.keyboard.press("r")
    with page.expect_download() as download:
        page.click("#export")
    saved = tmp_path / "saved.json"
    download.value.save_as(saved)
    page.reload()
    assert "1 of 4 decided" in page.locator("#position").inner_text()
    other = open_review()
    assert "0 of 4 decided" in other.locator("#position").inner_text()
    other.set_input_files("#import", saved)
    other.wait_for_function("document.getElementById('position').textContent.includes('1 of 4 decided')")
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "manifest_hash": "another"}))
    other.set_input_files("#import", saved)
    other.wait_for_function("document.getElementById('status').textContent.includes('about another audit')")


def test_current_and_better_content_are_shown_and_play(open_review):
    page = open_review()
    captions = page.locator(".card.current p").all_inner_texts()
    assert captions[0] == EVIL  # as text, not as markup
    assert page.evaluate("window.broken") is None
    assert page.locator(".card.better p.proposed").all_inner_texts() == ["thing number 1", "more 1"]
    page.wait_for_function("document.querySelector('.card.anchor img').naturalWidth > 0")
    page.keyboard.press("ArrowRight")
    assert page.locator(".card.current p.doubted").all_inner_texts() == ["more 1"]
    assert page.locator(".card.better p.proposed").all_inner_texts() == ["thing number 2"]
    page.keyboard.press("ArrowRight")
    for number, card in ((2, "current"), (3, "better")):
        page.wait_for_function(f"document.querySelector('.card.{card} audio').readyState >= 1")
        page.evaluate(
            f"document.querySelector('.card.{card} audio').addEventListener('play', () => window.played = '{card}')"
        )
        page.keyboard.press(str(number))
        page.wait_for_function(f"window.played === '{card}'")
    page.keyboard.press("ArrowRight")
    assert page.locator("#swap").is_disabled()  # a near-duplicate has no better content
    page.keyboard.press("s")
    assert "0 of 4 decided" in page.locator("#position").inner_text()


def test_filters(open_review):
    page = open_review()
    page.select_option("#filter", "open")
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert row_title(page) == "r2"
    assert page.locator("#position").inner_text().startswith("1 of 2")
    page.select_option("#filter", "near-duplicate")
    assert row_title(page) == "r3"
    page.select_option("#filter", "open")
    page.keyboard.press("r")
    page.keyboard.press("r")
    assert "Nothing left to decide" in page.locator("main").inner_text()
    page.keyboard.press("u")
    assert row_title(page) == "r3"


@pytest.mark.parametrize("size", [(390, 844), (1600, 900)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_layout_on_phones_and_wide_screens_in_light_and_dark(open_review, size, scheme):
    page = open_review(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=size[0] < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 60)")
    assert dark == (scheme == "dark")
    for name in ("keep", "reject", "swap", "undo"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["height"] >= 40
        assert box["y"] + box["height"] <= size[1]  # visible without scrolling
    page.click("#reject")
    assert row_title(page) == "r1"
    page.click("#help")
    page.keyboard.press("k")  # keys have no effect while the dialog is open
    page.keyboard.press("Escape")
    assert "1 of 4 decided" in page.locator("#position").inner_text()


def test_accessibility(open_review):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    for scheme in ("light", "dark"):
        page = open_review(color_scheme=scheme)
        assert [violation["id"] for violation in axe.run(page).response["violations"]] == []


def test_saved_decisions_are_applied(open_review, page_file, tmp_path):
    page = open_review()
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
