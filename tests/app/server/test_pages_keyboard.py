"""The page in Chromium by keyboard only: every action works, and the focus is never lost."""

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright: pip install playwright")
from playwright.sync_api import expect

from tests.app.server.chromium import QUERY_STRING, needs_chromium, wait_for_hits

pytestmark = [pytest.mark.slow, needs_chromium]


def test_keyboard_navigation(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("a frog")
    page.keyboard.press("Enter")
    wait_for_hits(page)
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit").first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".hit").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#explanation .score").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#explanation")).not_to_be_visible()
    page.locator(".hit").nth(1).focus()
    page.keyboard.press("m")
    expect(page.locator("#parts .chip")).to_have_count(1)
    page.keyboard.press("g")
    expect(page.locator("#results")).to_have_class(re.compile("list"))
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("key", ["m", "l"])
def test_focus_stays_on_hits_after_more_or_less_like_this(open_page, key):
    page = open_page(f"{QUERY_STRING}&modality=image")
    wait_for_hits(page).nth(1).focus()
    clicked = page.locator(".hit").nth(1).get_attribute("data-id")
    page.keyboard.press(key)
    expect(page.locator(f'.hit[data-id="{clicked}"]')).to_have_count(0)
    expect(page.locator(".hit").first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".hit").nth(1)).to_be_focused()
    focused = page.locator(".hit").nth(1).get_attribute("data-id")
    page.evaluate("document.getElementById('load-more').click()")
    expect(wait_for_hits(page)).to_have_count(48)
    expect(page.locator(f'.hit[data-id="{focused}"]')).to_be_focused()


def test_focus_stays_on_changed_chip(open_page):
    page = open_page(f"{QUERY_STRING}&text=frog&column.label=bell")
    for control in (page.locator("#modalities .modality").nth(1), page.locator("#parts .sign")):
        before = control.get_attribute("aria-pressed")
        control.focus()
        page.keyboard.press("Enter")
        expect(control).not_to_have_attribute("aria-pressed", before)
        expect(control).to_be_focused()
    page.get_by_role("button", name="Remove the filter").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#filters .chip")).to_have_count(0)
    expect(page.locator("#filter-menu summary")).to_be_focused()


def test_focus_moves_to_hits_after_filter_reset(open_page):
    page = open_page("?text=bells&column.label=zebra")
    page.get_by_role("button", name="Remove the filters").focus()
    page.keyboard.press("Enter")
    expect(wait_for_hits(page).first).to_be_focused()


@pytest.mark.parametrize(
    "inside",
    ["#filter-menu summary", "#filter-controls select >> nth=0", "#filter-controls input[type=number] >> nth=0"],
)
def test_escape_closes_filter_menu(open_page, inside):
    page = open_page(QUERY_STRING)
    page.locator("#filter-menu summary").click()
    page.locator(inside).focus()
    page.keyboard.press("Escape")
    expect(page.locator("#filter-menu")).not_to_have_attribute("open", "")
    expect(page.locator("#filter-menu summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#filter-controls")).to_be_visible()
    page.locator("#collection-info").click()
    expect(page.locator("#filter-controls")).not_to_be_visible()
