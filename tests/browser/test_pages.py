"""The pages as people meet them: in a real browser, before the real process."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.chromium import SHOTS
from tests.browser.conftest import ALICE, KEYS, OPS, SOON_S, Site, Watched, look

pytestmark = pytest.mark.browser

PAGES = {
    "status": "/status", "usage": "/usage", "admin": "/admin/", "admin-keys": "/admin/keys/",
    "admin-backends": "/admin/backends/", "admin-targets": "/admin/targets/",
    "admin-requests": "/admin/requests/", "admin-config": "/admin/config/",
}  # fmt: skip
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
    },
}


def test_the_right_key_leads_to_the_page_that_was_wanted(window: Watched) -> None:
    page = window.go("/usage?from=2026-01-01&to=2026-01-31")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Admin key").fill(OPS)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    assert page.input_value("[name=from]") == "2026-01-01"
    assert (window.errors, window.elsewhere) == ([], [])


@pytest.mark.parametrize(
    ("key", "words"), [("sk-wrong", "does not know this key"), (ALICE, "may not read the pages")]
)
def test_another_key_is_refused_in_words(browser: Browser, site: Site, key: str, words: str) -> None:
    window = look(browser, site)
    page = window.log_in(key)
    expect(page.get_by_role("alert")).to_contain_text(words)
    window.go("/status")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert window.elsewhere == []
    window.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_there_without_an_error_or_a_request_elsewhere(window: Watched, name: str) -> None:
    window.log_in()
    page = window.go(PAGES[name])
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle") if name != "status" else page.wait_for_timeout(300)
    text = page.content()
    assert OPS not in text
    assert not re.search(r"\b[0-9a-f]{64}\b", re.sub(r'csrfmiddlewaretoken" value="\w+"', "", text))
    assert (window.errors, window.elsewhere) == ([], [])


@pytest.mark.parametrize("name", ["login", *PAGES])
@pytest.mark.parametrize("seen", LOOKS)
def test_nothing_keeps_anybody_from_reading_it(browser: Browser, site: Site, name: str, seen: str) -> None:
    window = look(browser, site, **LOOKS[seen])
    if name == "login":
        page = window.go("/admin/login/")
    else:
        window.log_in()
        page = window.go(PAGES[name])
    if name == "status":
        for details in page.locator("details > summary").all()[:4]:
            details.click()
    found = Axe().run(page).response["violations"]
    bad = {
        v["id"]: [n["html"][:150] for n in v["nodes"]]
        for v in found
        if v["impact"] in ("serious", "critical")
    }
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    window.context.close()
    assert bad == {}
    assert wide <= 0


def test_values_follow_the_requests_without_a_page_jump(window: Watched, site: Site) -> None:
    window.log_in()
    page = window.go("/status")
    page.evaluate("window.stayed = true")
    page.locator("#part-backends details summary").first.click()
    page.evaluate("scrollTo(0, 120)")
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            site.ask("smollm2:135m", ALICE, 40, words=77)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        now = page.locator("#part-now")
        expect(now.get_by_role("cell", name="alice")).to_be_visible(timeout=SOON_S * 1000)
    finally:
        done.set()
        asking.join()
    expect(now.get_by_role("cell", name="alice")).to_have_count(0, timeout=SOON_S * 1000)
    newest = page.locator("table.requests > tbody > tr").first
    expect(newest.get_by_role("rowheader", name="smollm2:135m")).to_be_visible()
    assert page.evaluate("window.stayed")
    assert page.evaluate("scrollY") == 120
    assert page.locator("#part-backends details").first.get_attribute("open") is not None
    assert window.errors == []


def test_a_request_tells_why_it_went_where_it_went_and_why_it_went_nowhere(window: Watched) -> None:
    window.log_in()
    page = window.go("/status")
    rows = page.locator("table.requests > tbody > tr")
    went = rows.filter(has_text="no-such-model").first
    went.locator("summary").click()
    expect(went).to_contain_text("No backend lists the model")
    answered = rows.filter(has_text="smollm2:135m").first
    answered.locator("summary").click()
    expect(answered.get_by_role("columnheader", name="Prefill")).to_be_visible()
    expect(answered).to_contain_text("chosen")


def test_refreshing_can_be_paused(window: Watched, site: Site) -> None:
    window.log_in()
    page = window.go("/status")
    page.get_by_role("button", name="Pause").click()
    window.asked.clear()
    page.wait_for_timeout(4000)
    assert window.asked == set()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_it_works_without_a_script(browser: Browser, site: Site) -> None:
    window = look(browser, site, java_script_enabled=False)
    page = window.log_in()
    page.goto(site.url + "/status")
    expect(page.get_by_role("heading", name="Backends")).to_be_visible()
    assert 'http-equiv="refresh"' in page.content()
    expect(page.get_by_role("link", name="Reload")).to_be_visible()
    page.goto(site.url + "/usage")
    expect(page.locator("svg.bars")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    window.context.close()


def test_times_are_the_reader_s(window: Watched) -> None:
    window.log_in()
    page = window.go("/status")
    expect(page.locator("#fresh")).to_contain_text("times in Europe/Paris, days in Asia/Tokyo")
    shown = page.locator("#fresh time")
    assert "JST" in (shown.get_attribute("title") or "")


def test_logging_out_closes_the_pages(window: Watched) -> None:
    page = window.log_in()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.go_back()
    window.go("/status")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_form_without_its_token_is_refused(window: Watched) -> None:
    page = window.go("/admin/login/")
    page.evaluate("document.querySelector('[name=csrfmiddlewaretoken]').remove()")
    page.fill("#id_key", OPS)
    page.click("input[type=submit]")
    expect(page.get_by_text("was not sent from a page of Pharos")).to_be_visible()


def test_the_range_form_and_the_csv(window: Watched) -> None:
    window.log_in()
    page = window.go("/usage")
    expect(page.get_by_role("link", name="alice")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="by key").click()
    lines = waiting.value.path().read_text().splitlines()
    assert lines[0].startswith("day,key,requests,prompt_tokens,completion_tokens")
    assert any(re.match(r"\d{4}-\d\d-\d\dT00:00:00\+09:00,alice,\d+,", line) for line in lines)
    page.fill("[name=from]", "2026-01-01")
    page.fill("[name=to]", "2026-01-02")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Nothing was used.").first).to_be_attached()
    assert window.errors == []


def test_the_keyboard_is_enough(window: Watched) -> None:
    page = window.go("/status")
    page.keyboard.type(OPS)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Status")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_mistake_in_the_config_is_shown_with_its_line(window: Watched, site: Site) -> None:
    window.log_in()
    page, good = window.go("/status"), site.config.read_text()
    site.config.write_text(good + "\npolcy: cost\n")
    try:
        expect(page.locator("#part-config")).to_contain_text("did you mean policy", timeout=SOON_S * 1000)
    finally:
        site.config.write_text(good)
    expect(page.locator("#part-config")).not_to_contain_text("mistake", timeout=SOON_S * 1000)


def test_without_keys_there_is_a_banner_until_there_is_a_key(browser: Browser, open_site: Site) -> None:
    window = look(browser, open_site)
    page = window.go("/status")
    expect(page.get_by_text("There are no keys.")).to_be_visible()
    page.screenshot(path=SHOTS / "status-without-keys.png")
    assert (window.errors, window.elsewhere) == ([], [])
    open_site.config.write_text(open_site.config.read_text() + KEYS)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible(timeout=SOON_S * 1000)
    window.context.close()


@pytest.mark.parametrize("seen", LOOKS)
def test_pictures_of_each_page(browser: Browser, site: Site, seen: str) -> None:
    window = look(browser, site, **LOOKS[seen])
    page = window.go("/admin/login/")
    page.screenshot(path=SHOTS / f"login-{seen}.png")
    window.log_in()
    for name, path in PAGES.items():
        page = window.go(path)
        page.wait_for_timeout(200)
        page.screenshot(path=SHOTS / f"{name}-{seen}.png")
        assert (SHOTS / f"{name}-{seen}.png").stat().st_size > 5000
    window.context.close()
