"""The report page in Chromium: no console messages, no network requests, fits a phone, plays audio, is accessible."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from tests.app.cli.run_cli import triptych
from triptych.data import manifest
from triptych.evaluation.transitivity import measure_transitivity
from triptych.report import report_data
from triptych.report.page import render_report

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]


@pytest.fixture(scope="module")
def page_file(report, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render_report(report), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield launched
        launched.close()


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(360, 740, "light"), (390, 844, "dark"), (1440, 900, "light"), (1920, 1080, "dark")]
)
def test_page_opens_without_messages_and_fits_the_screen(browser, page_file, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, messages, schemes = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: schemes.append(request.url.partition(":")[0]))
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    assert page.evaluate("document.images.length") > 10
    assert set(schemes) <= {"file", "data"}
    overflow = "[...document.querySelectorAll('figure')].filter(f => f.scrollWidth > f.clientWidth).length"
    assert page.evaluate(overflow) == 0
    assert messages == []
    context.close()


def test_audio_plays(browser, page_file):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    seconds = page.evaluate(
        """() => Promise.all([...document.querySelectorAll('audio')].slice(0, 4).map(a => new Promise((yes, no) => {
            a.onloadedmetadata = () => yes(a.duration); a.onerror = () => no(a.error.message); a.load();
        })))"""
    )
    assert len(seconds) == 4
    assert all(1.9 < length < 2.3 for length in seconds), "the audio of the synthetic data lasts two seconds"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(browser, page_file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
    context = browser.new_context(
        color_scheme=scheme, bypass_csp=True
    )  # axe is a script, which the page's CSP does not allow
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    violations = axe().run(page).response["violations"]
    assert [(w["id"], w["nodes"][0]["html"][:120]) for w in violations] == []
    context.close()


def test_page_has_headings_tables_and_figures(report, page_file):
    text = page_file.read_text(encoding="utf-8")
    for title in (
        "Retrieval",
        "Examples",
        "Geometry of the space",
        "Softmax and transport plan",
        "Training",
        "Details",
    ):
        assert title in text
    assert text.count("<table>") >= 6
    assert text.count("<svg") == text.count('role="img" aria-label="')
    assert len(re.findall(r'\bid="([^"]+)"', text)) == len(set(re.findall(r'\bid="([^"]+)"', text)))
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    for d in report.evaluation.directions:
        assert f"{100 * d.recall[10]:.1f}%" in text


def test_rendering_is_deterministic(report, page_file):
    assert render_report(report) == page_file.read_text(encoding="utf-8")


def test_empty_sections_are_omitted(report):
    bare = render_report(
        replace(report, history=[], zero_shot=[], tsne=None, match_matrices=[], examples=[([], [])] * 6)
    )
    for title in ("Training", "Zero-shot classification", "Softmax and transport plan", "Examples"):
        assert f"<h2>{title}" not in bare


def test_user_text_is_escaped(run_dir, synthetic_manifest):
    table = manifest.read(synthetic_manifest)
    bad = '<script>alert("x")</script>&amp;'
    rows = tuple(replace(row, texts=(f"{bad} {row.id}",), label=bad + str(row.label)) for row in table.rows[:30])
    text = render_report(
        report_data.collect_report_data(run_dir, replace(table, rows=rows), "all", show_progress=False)
    )
    assert "<script" not in text
    assert "&lt;script&gt;alert" in text


def test_untrained_pairs_are_listed_with_their_bridge(report):
    trained_pairs = {frozenset(("image", "text")), frozenset(("image", "audio"))}
    transitivity = measure_transitivity(report.evaluation.directions, trained_pairs)
    text = render_report(
        replace(
            report, trained_pairs=trained_pairs, transitivity=transitivity, tsne=None, match_matrices=[], history=[]
        ),
        max_bytes=0,
    )
    assert "<h2>Untrained modality pairs" in text
    assert text.count("<br>untrained pair") == 2
    assert f"{100 * transitivity[0].retention:.0f}%" in text


def test_max_bytes_limits_the_inlined_media(report):
    small = render_report(replace(report, tsne=None, match_matrices=[], history=[]), max_bytes=0)
    assert "data:image" not in small
    assert "data:audio" not in small
    assert "files are listed by name only" in small


def test_report_command_writes_html_and_json(run_dir, synthetic_manifest, tmp_path):
    result = triptych("report", run_dir, "--data", synthetic_manifest, "-o", tmp_path / "r.html", "--json")
    assert result.returncode == 0, result.stderr
    assert "written:" in result.stdout
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((tmp_path / "r.json").read_text())["split"] == "test"
    wrong = triptych("report", run_dir, "--data", synthetic_manifest, "-o", tmp_path / "r.pdf")
    assert wrong.returncode == 2
    assert "a report is one HTML file; name it r.html" in wrong.stderr
