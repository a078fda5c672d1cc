"""The operations page in a real browser: its login and forms are accepted, its home is live, and it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
from playwright.sync_api import Browser, Page
from pydantic import SecretStr
from redis import Redis

from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.crawl.parse.classify import FetchResult
from app.crawl.policy import CrawlPolicy
from app.crawl.record.crawls import CrawlRecord, CrawlSettings, add_crawl
from app.messages.envelopes import site_message
from app.operations.waiting import peek_cache
from app.sites.search_reports import SearchReport, add_to_report, today
from app.sites.site import Site
from app.sites.stored import add_site, read_site
from app.timers.timers import Timers, full_pack_callback
from config.settings import Settings
from tasks.base import Context
from tests.integration.test_crawl_report import DOMAIN, complete, links, policy, url
from tests.integration.test_ops_sites import client, operable, search_client
from tests.integration.test_ops_waiting import QUEUE, let_wait
from tests.packs import page, publish, write_pack
from tests.support.broker import Broker
from tests.support.browser import PHONE, Tab, tab
from tests.support.operators import PASSWORD, operated, with_operators
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

__all__ = ["client", "operable", "policy", "search_client"]

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
    peek_cache.kept.clear()
    settings = with_operators(
        declared, retry_timeout_ms=600_000, musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x")
    )
    let_wait(settings, publisher, 12, error=f"https://site.example/{'a-very-long-path/' * 20} answered 503")
    Timers(redis).start("site.example", timeout=600, callback=full_pack_callback("site.example"))
    with operated(settings) as client:
        yield str(client.base_url)
    peek_cache.kept.clear()


def log_in(opened: Tab) -> None:
    opened.open("/ops/login")
    opened.page.fill("input[name=name]", "kim")
    opened.page.fill("input[name=password]", PASSWORD)
    opened.page.click("button[type=submit]")
    opened.page.wait_for_url("**/ops")


def test_every_page_fits_its_window_and_axe_finds_nothing(browser: Browser, base: str) -> None:
    with tab(browser, base) as opened:
        log_in(opened)
        for path, heading in PAGES.items():
            opened.open(path)
            assert opened.page.inner_text("h1") == heading
            opened.inspect(path)
        assert opened.faults == []


def test_a_long_error_leaves_each_column_of_a_table_readable_on_a_phone(browser: Browser, base: str) -> None:
    with tab(browser, base, viewport=PHONE) as opened:
        log_in(opened)
        opened.open(f"/ops/waiting?queue={QUEUE}")
        error = opened.page.locator("[aria-label=Messages] td:has-text('answered 503')").first.bounding_box()
        assert error is not None
        assert error["width"] > error["height"] / 2
        assert opened.faults == []


def test_the_forms_of_the_pages_are_accepted(browser: Browser, base: str, broker: Broker) -> None:
    with tab(browser, base) as opened:
        log_in(opened)
        opened.open(f"/ops/waiting?queue={QUEUE}")
        opened.page.check("input[name=ids] >> nth=3")
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
        log_in(plain)
        log_in(opened)
        publisher.publish([dead] * 30)
        opened.open("/ops/dead")
        opened.page.check("input[value=all]")
        opened.page.fill("input[name=rate]", "4")
        opened.page.click("button[value=replay]")
        opened.page.wait_for_selector("#live-act[data-live]")
        opened.page.fill("#live-act-steps input[name=why]", "typed meanwhile")
        opened.page.evaluate("window.isTheSamePage = true")
        plain.page.goto(opened.page.url)
        plain.page.wait_for_selector("#live-act[data-live]")
        for each in (opened, plain):
            each.page.wait_for_selector("#live-act:not([data-live]) [role=status]", timeout=60_000)
            assert "30 of 30 replayed" in each.page.inner_text("#live-act [role=status]")
        assert opened.page.evaluate("window.isTheSamePage")
        assert opened.page.locator("[data-is-live]").count() == 0
        # What is typed stays until the field loses the focus.
        assert opened.page.input_value("#live-act-steps input[name=why]") == "typed meanwhile"
        opened.page.evaluate("document.activeElement.blur()")
        opened.page.wait_for_selector("#live-act-steps input[name=why]", state="detached")
        assert opened.faults == plain.faults == []


# Sites

SITE_PATHS = [
    "/ops/sites",
    f"/ops/sites/{DOMAIN}",
    f"/ops/sites/{DOMAIN}/urls",
    f"/ops/sites/{DOMAIN}/broken-links",
    f"/ops/sites/{DOMAIN}/searches",
    f"/ops/sites/{DOMAIN}/remove",
    f"/ops/url?url={url('none')}",
]


@pytest.fixture
def sites_base(process: Context, policy: CrawlPolicy, client: httpx.Client) -> str:
    """Return the address of pages with a site, its crawls, its pack, and sites in trouble."""
    add_site(
        process.store, Site.of(DOMAIN, {"name": "Agency A", "schedule": "6h"}).with_blocked(url("x"), blocked=True)
    )
    settings = CrawlSettings(scope="exact", max_pages=9, max_depth=9, host_delay=0, host_concurrency=1)
    for number in range(3):
        counts = {"indexed": 12_007 - number, "new": 12, "changed": 130, "gone": 5, "seconds": 4_000, "cut": number % 2}
        record = CrawlRecord(
            id=f"c{number}", domain=DOMAIN, start_url=url(""), started=datetime(2026, 11, 20 - number, tzinfo=UTC),
            settings=settings, timer_timeout=30, state="done", counts=counts if number < 2 else {},
            reasons={"indexed": 12_007, "dead-lettered": 4, "500": 2, "404": 3},
        )  # fmt: skip
        add_crawl(process.store, record)
    complete(process, policy, "", "<title>Home</title>Welcome here" + links("a", "none", "x" * 150))
    complete(process, policy, "a", "<title>A</title>All about amber" + links("none"))
    complete(process, policy, "none", FetchResult("gone", "404", status=404))
    pack = write_pack(process.settings.data_dir / "p.sqlite", [page("/one")], domain=DOMAIN)
    publish(process.store, pack, domain=DOMAIN)
    add_to_report(process.store, DOMAIN, today(), SearchReport(9, 2, 1))
    for number in range(30):
        add_site(process.store, Site.of(f"site-{number:02}.example.org", {"schedule": "0 3 * * *"}))
    process.store.put("sites/damaged.example.org.json", b"{damaged")
    process.frontier.set_state("c", "paused")
    return str(client.base_url)


def test_axe_finds_nothing_on_pages_of_sites_and_nothing_is_wider_than_a_phone_or_than_its_column(
    browser: Browser, sites_base: str
) -> None:
    wider = """form => [...form.querySelectorAll("input")].filter(
        each => each.getBoundingClientRect().right > form.getBoundingClientRect().right).length"""
    with tab(browser, sites_base) as opened:
        log_in(opened)
        for path in SITE_PATHS:
            opened.open(path)
            for details in opened.page.query_selector_all("details:not([open]) > summary"):
                details.click()
            opened.inspect(path)
            opened.page.set_viewport_size({"width": 900, "height": 800})
            assert not any(form.evaluate(wider) for form in opened.page.query_selector_all("form")), path
        assert opened.faults == []


def test_a_wrongly_typed_domain_has_the_focus_in_its_form_again_and_the_removal_goes_on_there(
    process: Context, browser: Browser, sites_base: str
) -> None:
    with tab(browser, sites_base) as opened:
        log_in(opened)
        opened.open(f"/ops/sites/{DOMAIN}/remove")
        typed, remove = opened.page.locator("input[name=confirm]"), opened.page.get_by_role("button", name="Delete all")
        typed.fill("a.gv")
        remove.click()
        refused = opened.page.locator("input[name=confirm][aria-invalid=true]:focus")
        assert refused.input_value() == "a.gv"
        assert refused.get_attribute("aria-describedby") == "fault-confirm"
        assert f"type {DOMAIN} to delete all" in opened.page.inner_text("#fault-confirm")
        opened.inspect("a refused removal")
        typed.fill(DOMAIN)
        remove.click()
        assert f"{DOMAIN} is deleted" in str(opened.page.get_by_role("status").text_content())
        assert opened.faults == []
    assert read_site(process.store, DOMAIN) is None


def test_a_site_is_changed_without_scripts_and_an_invalid_field_is_shown(
    process: Context, browser: Browser, sites_base: str
) -> None:
    with tab(browser, sites_base, java_script_enabled=False) as opened:
        log_in(opened)
        opened.open(f"/ops/sites/{DOMAIN}")
        opened.page.get_by_label("schedule").fill("sometimes")
        opened.page.get_by_label("exclude").fill("/private/*\n/tmp/*")
        opened.page.get_by_role("button", name="Change", exact=True).click()
        assert opened.page.get_by_label("schedule").get_attribute("aria-invalid") == "true"
        assert opened.page.get_by_label("exclude").input_value() == "/private/*\n/tmp/*"
        opened.page.get_by_label("schedule").fill("12h")
        opened.page.get_by_role("button", name="Change", exact=True).click()
        assert "Changed: exclude, schedule." in str(opened.page.get_by_role("status").text_content())
        opened.page.get_by_role("button", name=f"Unblock {url('x')}").click()
        assert "is no longer blocked" in str(opened.page.get_by_role("status").text_content())
    site = read_site(process.store, DOMAIN)
    assert site is not None
    assert (site.schedule, site.exclude, site.blocked) == ("12h", ("/private/*", "/tmp/*"), ())
