"""The page in a real Chromium: opens without a word on the console, fits a phone, shows, plays, and asks nobody."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from tests.app.test_cli import triptych
from triptych.data import manifest
from triptych.evaluation.transitivity import transits
from triptych.report import findings
from triptych.report.page import html

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]


@pytest.fixture(scope="module")
def page_file(found, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(html(found), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt install chromium, then run this again")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(360, 740, "light"), (390, 844, "dark"), (1440, 900, "light"), (1920, 1080, "dark")]
)
def test_it_opens_without_a_word_and_fits(browser, page_file, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url.partition(":")[0]))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    assert page.evaluate("document.images.length") > 10
    assert set(asked) <= {"file", "data"}
    overflow = "[...document.querySelectorAll('figure')].filter(f => f.scrollWidth > f.clientWidth).length"
    assert page.evaluate(overflow) == 0
    assert said == []
    context.close()


def test_sounds_play(browser, page_file):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    seconds = page.evaluate(
        """() => Promise.all([...document.querySelectorAll('audio')].slice(0, 4).map(a => new Promise((yes, no) => {
            a.onloadedmetadata = () => yes(a.duration); a.onerror = () => no(a.error.message); a.load();
        })))"""
    )
    assert len(seconds) == 4
    assert all(1.9 < length < 2.3 for length in seconds), "the world's sounds last two seconds"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend(browser, page_file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script, and the page allows none
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    wrong = axe().run(page).response["violations"]
    assert [(w["id"], w["nodes"][0]["html"][:120]) for w in wrong] == []
    context.close()


def test_headings_tables_and_drawings_are_there(found, page_file):
    text = page_file.read_text(encoding="utf-8")
    for title in (
        "What finds what",
        "Look and listen",
        "The shape of the space",
        "One by one",
        "Training",
        "What this",
    ):
        assert title in text
    assert text.count("<table>") >= 6
    assert text.count("<svg") == text.count('role="img" aria-label="')
    assert len(re.findall(r'\bid="([^"]+)"', text)) == len(set(re.findall(r'\bid="([^"]+)"', text)))
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    for d in found.evaluation.directions:
        assert f"{100 * d.recall[10]:.1f}%" in text


def test_the_same_findings_give_the_same_page(found, page_file):
    assert html(found) == page_file.read_text(encoding="utf-8")


def test_what_is_not_there_is_left_out(found):
    bare = html(replace(found, history=[], zero_shot=[], map=None, squares=[], examples=[([], [])] * 6))
    for title in ("Training", "Named by prompts", "One by one", "Look and listen"):
        assert f"<h2>{title}" not in bare


def test_nothing_of_the_users_becomes_markup(run, world):
    table = manifest.read(world)
    bad = '<script>alert("x")</script>&amp;'
    rows = tuple(replace(row, texts=(f"{bad} {row.id}",), label=bad + str(row.label)) for row in table.rows[:30])
    text = html(findings.gather(run, replace(table, rows=rows), "all", show=False))
    assert "<script" not in text
    assert "&lt;script&gt;alert" in text


def test_a_pair_that_was_never_trained_stands_beside_its_bridge(found):
    trained = {frozenset(("image", "text")), frozenset(("image", "audio"))}
    bridged = transits(found.evaluation.directions, trained)
    text = html(replace(found, trained=trained, transits=bridged, map=None, squares=[], history=[]), budget=0)
    assert "<h2>Pairs that were never trained" in text
    assert text.count("<br>never trained") == 2
    assert f"{100 * bridged[0].kept:.0f}%" in text


def test_a_small_budget_makes_a_small_page(found):
    small = html(replace(found, map=None, squares=[], history=[]), budget=0)
    assert "data:image" not in small
    assert "data:audio" not in small
    assert "files are named only" in small


def test_the_command_writes_a_page_and_its_numbers(run, world, tmp_path):
    result = triptych("report", run, "--data", world, "-o", tmp_path / "r.html", "--json")
    assert result.returncode == 0, result.stderr
    assert "written:" in result.stdout
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((tmp_path / "r.json").read_text())["split"] == "test"
    wrong = triptych("report", run, "--data", world, "-o", tmp_path / "r.pdf")
    assert wrong.returncode == 2
    assert "a report is one HTML file; name it r.html" in wrong.stderr
