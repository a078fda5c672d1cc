"""The operations page in a real browser: its login and forms are accepted, its home is live, and it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page, Request
from pydantic import SecretStr
from redis import Redis

from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.messages.envelopes import site_message
from app.operations.waiting import looks
from app.timers.timers import Timers, full_pack
from config.settings import Settings
from tests.integration.test_ops_waiting import QUEUE, let_wait
from tests.support.broker import Broker
from tests.support.browser import DESKTOP, PHONE, Tab, tab
from tests.support.operators import PASSWORD, operated, with_operators
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGES = {
    "/ops": "Is everything well?",
    "/ops/dead": "Dead letters",
    "/ops/acts": "Acts on dead letters",
    f"/ops/waiting?queue={QUEUE}": "Waiting messages",
    "/ops/queues": "Queues and workers",
    "/ops/art": "Cover art",
    "/ops/searchers": "Searchers",
    "/ops/audit": "Audit",
}


@pytest.fixture
def base(declared: Settings, publisher: Publisher, redis: Redis) -> Iterator[str]:
    """Serve the pages with something on each, and return their address."""
    looks.kept.clear()
    settings = with_operators(
        declared, retry_timeout_ms=600_000, musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x")
    )
    let_wait(settings, publisher, 12, error=f"https://site.example/{'a-very-long-path/' * 20} answered 503")
    Timers(redis).start("site.example", timeout=600, callback=full_pack("site.example"))
    with operated(settings) as client:
        yield str(client.base_url)
    looks.kept.clear()


def size_of(request: Request) -> int:
    """Return the bytes of the answer to a request."""
    return request.sizes()["responseHeadersSize"] + request.sizes()["responseBodySize"]


def log_in(opened: Tab) -> None:
    opened.open("/ops/login")
    opened.page.fill("input[name=name]", "kim")
    opened.page.fill("input[name=password]", PASSWORD)
    opened.page.click("button[type=submit]")
    opened.page.wait_for_url("**/ops")


def test_the_home_page_takes_three_requests_in_an_empty_browser_and_few_bytes(browser: Browser, base: str) -> None:
    with tab(browser, base) as opened:
        log_in(opened)
        session = opened.page.context.storage_state()
    with tab(browser, base, storage_state=session) as empty:
        requests: list[Request] = []
        empty.page.on("requestfinished", lambda request: requests.append(request))
        empty.open("/ops")
        # The fourth is the event stream, which begins when the page is shown.
        empty.page.wait_for_selector("[data-is-live]")
        sizes = {each.url.partition("?")[0].removeprefix(empty.base): size_of(each) for each in requests}
        assert sorted(sizes) == ["/ops", "/static/ops.css", "/static/ops.js"]
        assert sum(sizes.values()) < 30_000
        assert empty.faults == []


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"])
def test_every_page_fits_its_window_and_axe_finds_nothing(
    browser: Browser, base: str, scheme: str, viewport: dict[str, int]
) -> None:
    """The style sheet's rules for dark windows set colours only, those for narrow ones the layout only."""
    with tab(browser, base, color_scheme=scheme, viewport=viewport) as opened:
        log_in(opened)
        for path, heading in PAGES.items():
            opened.open(path)
            assert opened.page.inner_text("h1") == heading
            assert opened.overflow() <= 0, path
            assert opened.violations() == [], path
        assert opened.faults == []


def test_the_forms_of_the_pages_are_accepted(browser: Browser, base: str, broker: Broker) -> None:
    with tab(browser, base) as opened:
        log_in(opened)
        opened.open(f"/ops/waiting?queue={QUEUE}")
        opened.page.check("input[name=message] >> nth=3")
        opened.page.click("button[value=send]")
        opened.page.wait_for_selector(".notice[role=status]")
        assert "1 sent to the work queue; 11 wait" in opened.page.inner_text(".notice[role=status]")
        assert broker.depth("site.page") == 1
        opened.open("/ops/queues")
        opened.page.click("text=Fire now")
        opened.page.wait_for_selector(".notice[role=status]")
        assert "The timer of site.example is due now." in opened.page.inner_text(".notice[role=status]")
        assert opened.faults == []


def test_the_home_page_changes_without_a_reload_and_works_without_scripts(
    browser: Browser, base: str, publisher: Publisher
) -> None:
    with tab(browser, base) as opened, tab(browser, base, java_script_enabled=False) as plain:
        log_in(opened)
        opened.page.wait_for_selector("[data-is-live]")
        opened.page.evaluate("window.isTheSamePage = true")
        publisher.publish([site_message("index", url="https://site.example/")])
        opened.page.wait_for_selector("#live-findings :text('site.index (1 ready)')", timeout=30_000)
        assert opened.page.evaluate("window.isTheSamePage")
        log_in(plain)
        assert "site.index (1 ready)" in plain.page.inner_text("#live-findings")
        assert opened.faults == plain.faults == []


def test_from_the_home_page_to_the_replay_of_a_cause_are_five_clicks(
    browser: Browser, base: str, publisher: Publisher
) -> None:
    dead = Outgoing(exchange="site.dead", routing_key="site.index", body=b"{}", headers={"perennial-reason": "down"})
    publisher.publish([dead] * 3)
    publisher.publish([replace(dead, headers={"perennial-reason": "other"})])
    with tab(browser, base, java_script_enabled=False) as opened:
        log_in(opened)
        opened.page.click("nav >> text=Dead letters")
        opened.page.click("[aria-label=Causes] >> text=down")
        assert "When the cause is repaired" in opened.page.inner_text("main")
        opened.page.click("[aria-label=Letters] td a >> nth=0")
        assert "Arguments" in opened.page.inner_text("main")
        opened.page.go_back()
        opened.page.click("button[value=replay]")
        opened.page.wait_for_selector("#live-act:not([data-live]) [role=status]", timeout=60_000)
        assert "3 of 3 replayed" in opened.page.inner_text("#live-act [role=status]")
        assert opened.faults == []


def test_a_letter_is_edited_and_another_one_redirected_without_scripts(
    browser: Browser, base: str, publisher: Publisher, broker: Broker
) -> None:
    body = b'{"type": "index", "url": "https://site.example/wrong"}'
    dead = Outgoing(exchange="site.dead", routing_key="site.index", body=body, headers={"perennial-reason": "x"})

    def open_letter() -> Page:
        publisher.publish([dead])
        opened.open("/ops/dead")
        opened.page.click("[aria-label=Letters] td a >> nth=0")
        return opened.page

    with tab(browser, base, java_script_enabled=False) as opened:
        log_in(opened)
        arguments = open_letter().get_by_role("textbox", name="Arguments")
        arguments.fill(arguments.input_value().replace("wrong", "right"))
        opened.page.get_by_role("button", name="Replay with these arguments").click()
        eventually(lambda: broker.depth("site.index") == 1, "the edited letter is sent")
        assert "right" in str(broker.peek("site.index")[0].body)
        open_letter().get_by_label("To the queue").first.select_option("site.crawl")
        opened.page.get_by_role("button", name="Redirect", exact=True).click()
        eventually(lambda: broker.depth("site.crawl") == 1, "the letter is redirected")
        assert opened.faults == []


def test_the_page_of_an_act_follows_it_with_and_without_scripts_until_it_ends(
    browser: Browser, base: str, publisher: Publisher
) -> None:
    dead = Outgoing(exchange="site.dead", routing_key="site.index", body=b"{}", headers={"perennial-reason": "x"})
    with tab(browser, base) as opened, tab(browser, base, java_script_enabled=False) as plain:
        for each in (opened, plain):
            log_in(each)
            publisher.publish([dead] * 20)
            each.open("/ops/dead")
            each.page.check("input[value=all]")
            each.page.fill("input[name=rate]", "4")
            each.page.click("button[value=replay]")
            each.page.wait_for_selector("#live-act[data-live]")
            each.page.fill("#live-act-steps input[name=why]", "typed meanwhile")
            if each is opened:
                each.page.evaluate("window.isTheSamePage = true")
            each.page.wait_for_selector("#live-act:not([data-live]) [role=status]", timeout=60_000)
            assert "20 of 20 replayed" in each.page.inner_text("#live-act [role=status]")
        assert opened.page.evaluate("window.isTheSamePage")
        assert opened.page.locator("[data-is-live]").count() == 0
        # What is typed stays until the field loses the focus.
        assert opened.page.input_value("#live-act-steps input[name=why]") == "typed meanwhile"
        opened.page.evaluate("document.activeElement.blur()")
        opened.page.wait_for_selector("#live-act-steps input[name=why]", state="detached")
        assert opened.faults == plain.faults == []
