"""The page in Chromium: mouse interaction and accessibility (axe)."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install playwright")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.app.server.chromium import QUERY_STRING, needs_chromium, wait_for_hits
from tests.media.media_files import save_video

pytestmark = [pytest.mark.slow, needs_chromium]


def test_search_by_text(open_page, client):
    page = open_page()
    page.fill("#text", "two red bells")
    page.press("#text", "Enter")
    expect(wait_for_hits(page)).to_have_count(24)
    expect(page).to_have_url(re.compile(re.escape("?text=two+red+bells") + "$"))
    expected = client.post("/v1/search", json={"parts": [{"text": "two red bells"}], "k": 24}).json()["hits"]
    assert page.locator(".hit").evaluate_all("all => all.map(one => one.dataset.id)") == [hit["id"] for hit in expected]
    bar = page.locator(".relevance").first
    assert f"score {expected[0]['score']:.3f}" in (bar.get_attribute("title") or "")
    assert page.locator(".relevance-line").count() == 1
    page.reload()
    expect(wait_for_hits(page)).to_have_count(24)
    assert page.input_value("#text") == "two red bells"
    page.click("#load-more")
    expect(wait_for_hits(page)).to_have_count(48)


def test_search_by_a_dropped_file(open_page, files):
    page = open_page("?modality=image")
    data = list((files / "images" / "000005.png").read_bytes() + b"changed")
    page.evaluate(
        """data => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(data)], "000005.png", { type: "image/png" }));
            const settings = { dataTransfer: transfer, bubbles: true, cancelable: true };
            for (const kind of ["dragenter", "dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(kind, settings));
        }""",
        data,
    )
    expect(wait_for_hits(page).first).to_contain_text("000005.png")
    expect(page.locator("#parts .chip")).to_contain_text("000005.png")
    page.locator("#parts .chip button", has_text="×").click()
    expect(page.locator(".empty")).to_be_visible()


def test_search_by_pasted_and_picked_file(open_page, files):
    page = open_page("?modality=audio")
    page.set_input_files("#picker", files / "audio" / "000007.wav")
    expect(page.locator("#status")).to_contain_text("is in the collection (000007.wav) and is not shown")
    expect(page.locator(".hit", has_text="000007.wav")).to_have_count(0)
    page.evaluate(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(["a frog croaks"], "frog.txt", { type: "text/plain" }));
            dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }));
        }"""
    )
    expect(page.locator("#parts .chip")).to_have_count(2)
    expect(page.locator(".hit")).not_to_have_count(0)


def test_search_by_recording(open_page):
    page = open_page()
    page.click("#record")
    expect(page.locator("#record")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#record")).to_contain_text(re.compile(r"0\.[5-9] s|[1-9]\.\d s"))
    page.click("#record")
    expect(page.locator("#parts .chip")).to_contain_text("recording")
    expect(wait_for_hits(page)).to_have_count(24)


def test_audio_playback_and_spectrogram(open_page):
    page = open_page(f"{QUERY_STRING}&modality=audio")
    wait_for_hits(page).first.locator(".play").click()
    page.wait_for_function(
        "() => { const p = document.getElementById('player'); return !p.paused && p.currentTime > 0; }"
    )
    expect(page.locator(".audio.playing")).to_have_count(1)
    page.locator(".hit").first.focus()
    page.keyboard.press("Space")
    expect(page.locator(".audio.playing")).to_have_count(0)
    page.keyboard.press("Space")
    expect(page.locator(".audio.playing")).to_have_count(1)
    page.keyboard.press("s")
    spectrogram = page.locator(".hit").first.locator(".spectrogram")
    expect(spectrogram).to_be_visible()
    page.wait_for_function("image => image.naturalWidth > 100", arg=spectrogram.element_handle())


def test_explanation_sums_to_score_and_highlights_linked_parts(open_page):
    page = open_page(f"{QUERY_STRING}&modality=image")
    wait_for_hits(page).first.locator(".explain-button").click()
    dialog = page.locator("#explanation")
    expect(dialog.locator(".score")).to_be_visible()
    assert float(dialog.locator(".total").inner_text()) == pytest.approx(
        float(dialog.locator(".score").inner_text()), abs=0.0015
    )
    words = dialog.locator(".word small").all_inner_texts()
    assert sum(map(float, words)) == pytest.approx(float(dialog.locator(".total").inner_text()), abs=0.003)
    expect(page).to_have_url(re.compile("explain="))
    read_canvas = "() => document.querySelector('.image-attribution canvas').toDataURL()"
    page.wait_for_function("() => document.querySelector('.image-attribution canvas').width > 100")
    before = page.evaluate(read_canvas)
    dialog.locator(".word").nth(1).hover()
    page.wait_for_function(f"before => ({read_canvas})() !== before", arg=before)
    expect(dialog.locator(".audio-attribution")).to_be_visible()  # the audio of the same scene
    box = dialog.locator(".image-attribution canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function(
        "words => [...document.querySelectorAll('.word small')].some((w, i) => w.textContent !== words[i])", arg=words
    )
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(page).not_to_have_url(re.compile("explain="))


def test_explanation_of_video_shows_image_and_audio(open_page, tmp_path):
    page = open_page("?text=two+red+bells&modality=image")
    assert page.get_attribute("#collection-info", "title") is None
    page.set_input_files("#picker", save_video(tmp_path / "clip.webm", seconds=2.0))
    expect(page.locator("#parts .chip")).to_contain_text("clip.webm")
    wait_for_hits(page).first.locator(".explain-button").click()
    dialog = page.locator("#explanation")
    expect(dialog.locator(".score")).to_have_count(3)  # of the text, the video's image and its audio
    titles = dialog.locator(".strip h3", has_text="query:").all_inner_texts()
    assert [title.split(": ")[1] for title in titles] == ["text", "image", "audio"]
    video = dialog.locator(".image-attribution video")
    page.wait_for_function("video => video.videoWidth === 64 && video.currentTime > 0.5", arg=video.element_handle())
    page.wait_for_function("video => video.nextSibling.width > 100", arg=video.element_handle())


def test_more_like_this_weights_and_filters(open_page):
    page = open_page(f"{QUERY_STRING}&modality=image")
    first = wait_for_hits(page).first.get_attribute("data-id")
    page.locator(".hit").first.get_by_role("button", name="Less like").click()
    chip = page.locator("#parts .chip")
    expect(chip).to_have_class(re.compile("negative"))
    expect(page).to_have_url(re.compile(re.escape(f"item={first}&weight=-0.5")))
    expect(page.locator(f'.hit[data-id="{first}"]')).to_have_count(0)
    chip.locator(".sign").click()
    expect(chip).not_to_have_class(re.compile("negative"))
    page.locator("#filter-menu summary").click()
    page.locator("#filter-controls select").last.select_option("frog")
    expect(page.locator("#filters .chip")).to_contain_text("label: frog")
    expect(page).to_have_url(re.compile(re.escape("column.label=frog")))
    page.get_by_role("button", name="Remove the filter").click()
    expect(page.locator("#filters .chip")).to_have_count(0)
    page.go_back()
    expect(page.locator("#filters .chip")).to_have_count(1)


def test_text_becomes_query_part(open_page):
    page = open_page()
    page.fill("#text", "bells")
    page.press("#text", "Shift+Enter")
    expect(page.locator("#parts .chip")).to_contain_text("bells")
    page.fill("#text", "frog")
    page.press("#text", "Enter")
    expect(wait_for_hits(page).first).to_be_visible()
    expect(page.locator("#parts .chip")).to_have_count(1)
    page.wait_for_url(re.compile("text=frog&text=bells|text=bells&text=frog"))


def test_map_lasso_and_query_position(open_page):
    page = open_page("?tab=map&text=a+frog")
    canvas = page.locator(".map-field canvas")
    box = canvas.bounding_box()
    assert box
    corners = [
        (0.01, 0.01),
        (0.5, 0.01),
        (0.99, 0.02),
        (0.99, 0.5),
        (0.99, 0.95),
        (0.5, 0.95),
        (0.01, 0.95),
        (0.01, 0.5),
    ]
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point)
    page.mouse.up()
    expect(page.locator(".map-list h2")).to_contain_text("selected")
    assert page.locator(".map-list .entry").count() > 100
    page.select_option("#map-colour", "label")
    expect(page.locator(".map-legend")).to_contain_text("frog")
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator(".map-list h2")).to_be_visible()
    page.mouse.move(*points[4])
    page.mouse.wheel(0, -300)


def test_empty_state_and_filter_reset(open_page, browser, address):
    page = open_page()
    page.locator(".empty li button").first.click()
    expect(wait_for_hits(page).first).to_be_visible()
    page = open_page("?text=bells&column.label=zebra")
    expect(page.locator(".empty")).to_contain_text("No item matches these filters")
    page.get_by_role("button", name="Remove the filters").click()
    expect(wait_for_hits(page).first).to_be_visible()


def test_page_shows_server_error_message(browser, address):
    page = browser.new_page()
    page.goto(f"{address}/?item=0000000000000000")
    expect(page.locator("[role=alert]")).to_contain_text("no item '0000000000000000'")
    page.goto(address)
    page.set_input_files("#picker", {"name": "paper.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7\n" * 20})
    expect(page.locator("[role=alert]")).to_contain_text("paper.pdf: is a PDF document; give an image")
    page.close()


@pytest.mark.parametrize(
    ("scheme", "query"),
    [
        ("light", ""),
        ("light", f"{QUERY_STRING}&view=list"),
        ("dark", f"{QUERY_STRING}&text=frog&weight=-0.5&column.label=bell"),
        ("dark", "?tab=map"),
    ],
)
def test_axe_reports_no_violations(open_page, scheme, query):
    page = open_page(query, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    check_accessibility(page)
    if QUERY_STRING in query:
        page.locator(".explain-button").first.click()
        expect(page.locator("#explanation .score").first).to_be_visible()
        check_accessibility(page)


def check_accessibility(page):
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0].get("failureSummary")) for v in violations] == []


def test_narrow_viewport_does_not_scroll_horizontally(open_page):
    page = open_page(f"{QUERY_STRING}", width=390, height=844)
    expect(wait_for_hits(page).first).to_be_visible()
    horizontal_overflow = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(horizontal_overflow) <= 0
    check_accessibility(page)
    page.locator(".explain-button").first.click()
    expect(page.locator("#explanation .score").first).to_be_visible()
    assert page.evaluate(horizontal_overflow) <= 0
    page.keyboard.press("Escape")
    page.click("#tab-map")
    expect(page.locator(".map-legend li").first).to_be_visible(timeout=120_000)
    assert page.evaluate(horizontal_overflow) <= 0


def test_report_and_review_tabs(open_page):
    page = open_page()
    page.click("#tab-report")
    expect(page.locator("h1")).to_have_text("the report")
    page.go_back()
    page.click("#tab-review")
    expect(page.locator("h1")).to_have_text("the review")
