"""Pages of sites in a real Chromium: axe finds nothing, nothing is wider than a phone, and forms work by keyboard."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from app.crawl.policy import CrawlPolicy
from app.crawl.read.classify import FetchResult
from app.crawl.record.crawls import CrawlRecord, CrawlSettings, add_crawl
from app.sites.search_reports import SearchReport, add_to_report, today
from app.sites.site import Site
from app.sites.stored import add_site, read_site
from tasks.base import Context
from tests.integration.test_crawl_report import DOMAIN, complete, links, policy, url
from tests.integration.test_ops_sites import client, operable, search_client
from tests.packs import page, publish, write_pack
from tests.support import browser as browsers
from tests.support.browser import PHONE, Tab
from tests.support.operators import PASSWORD

pytestmark = pytest.mark.integration

__all__ = ["client", "operable", "policy", "search_client"]

PATHS = [
    "/ops/sites",
    f"/ops/sites/{DOMAIN}",
    f"/ops/sites/{DOMAIN}/urls",
    f"/ops/sites/{DOMAIN}/broken-links",
    f"/ops/sites/{DOMAIN}/searches",
    f"/ops/sites/{DOMAIN}/remove",
    f"/ops/url?url={url('none')}",
]


@pytest.fixture
def base(process: Context, policy: CrawlPolicy, client: httpx.Client) -> str:
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


def opened(tab: Tab, path: str) -> None:
    """Open a page, and log in first."""
    tab.open("/ops/login")
    tab.page.get_by_label("Your name").fill("kim")
    tab.page.get_by_label("Password").fill(PASSWORD)
    tab.page.get_by_role("button", name="Log in").click()
    tab.page.wait_for_url("**/ops")
    tab.open(path)


def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(browser: Browser, base: str) -> None:
    windows: list[dict[str, Any]] = [{}, {"color_scheme": "dark", "viewport": PHONE}]
    for options in windows:
        with browsers.tab(browser, base, **options) as tab:
            opened(tab, "/ops/sites")
            for path in PATHS:
                tab.open(path)
                for details in tab.page.query_selector_all("details:not([open]) > summary"):
                    details.click()
                assert tab.violations() == [], (path, options)
                assert tab.overflow() <= 0, (path, options)
            assert tab.faults == []


def test_a_site_is_changed_without_scripts_and_an_invalid_field_is_shown(
    process: Context, browser: Browser, base: str
) -> None:
    with browsers.tab(browser, base, java_script_enabled=False) as tab:
        opened(tab, f"/ops/sites/{DOMAIN}")
        tab.page.get_by_label("schedule").fill("sometimes")
        tab.page.get_by_label("exclude").fill("/private/*\n/tmp/*")
        tab.page.get_by_role("button", name="Change", exact=True).click()
        assert tab.page.get_by_label("schedule").get_attribute("aria-invalid") == "true"
        assert tab.page.get_by_label("exclude").input_value() == "/private/*\n/tmp/*"
        tab.page.get_by_label("schedule").fill("12h")
        tab.page.get_by_role("button", name="Change", exact=True).click()
        assert "Changed: exclude, schedule." in str(tab.page.get_by_role("status").text_content())
        tab.page.get_by_role("button", name=f"Unblock {url('x')}").click()
        assert "is no longer blocked" in str(tab.page.get_by_role("status").text_content())
    site = read_site(process.store, DOMAIN)
    assert site is not None
    assert (site.schedule, site.exclude, site.blocked) == ("12h", ("/private/*", "/tmp/*"), ())
