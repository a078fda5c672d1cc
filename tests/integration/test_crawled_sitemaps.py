"""Sitemaps in a crawl: which are read, what a damaged or missing one means, and their bounds."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.crawl.reports.explanation import explain_url
from app.crawl.urls import SITEMAP, CrawlUrl
from app.sites.status import status
from app.timers.timers import full_pack_callback
from tasks.base import Context
from tests.integration.test_recrawl import crawl, packed, reasons
from tests.servers.hazards import bomb
from tests.servers.site import Answer, Site, page, redirect, reply, robots
from tests.support.completing import complete_one

pytestmark = pytest.mark.integration


def sitemap(*urls: str) -> Answer:
    return reply(
        f"<urlset>{''.join(f'<url><loc>{url}</loc></url>' for url in urls)}</urlset>", content_type="application/xml"
    )


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a site of two pages, and one that a test may name in a sitemap."""
    pages = {"/": page("Home", "Amber", links=["/cedar"]), "/cedar": page("Cedar", "Birch")}
    with Site({**pages, "/hidden": page("Hidden", "A page to which only a sitemap leads")}) as site:
        yield site


def test_an_unnamed_sitemap_that_fails_keeps_the_pages_that_an_earlier_crawl_found_in_it_and_no_others(
    process: Context, site: Site
) -> None:
    site.set("/sitemap.xml", reply(status=503))
    crawl(process, site, "one")
    site.set("/", page("Home", "Amber, without a link"))
    crawl(process, site, "two")
    assert packed(process, site, "two") == 1
    site.set("/sitemap.xml", sitemap(site.at("/hidden")))
    crawl(process, site, "three")
    site.set("/sitemap.xml", reply(status=503))
    for crawl_id in ("four", "five"):
        crawl(process, site, crawl_id)
        assert packed(process, site, crawl_id) == 2
    site.remove("/sitemap.xml")
    crawl(process, site, "six")
    assert packed(process, site, "six") == 1


def test_a_sitemap_that_is_damaged_or_not_answered_removes_no_page_and_one_that_is_whole_or_gone_does(
    process: Context, site: Site
) -> None:
    site.set("/robots.txt", robots(f"Sitemap: {site.at('/map.xml')}"))
    whole = sitemap(site.at("/cedar"), site.at("/hidden"))
    cut = reply(f"<urlset><url><loc>{site.at('/cedar')}</loc></url><url><loc>http")
    error_page = reply("<html><body>Try again later</body></html>")
    answers = [(whole, 3), (cut, 3), (error_page, 3), (cut, 3), (reply(status=403), 3)]
    answers += [(sitemap(site.at("/cedar")), 2), (whole, 3), (reply(status=404), 2)]
    for number, (answer, pages) in enumerate(answers):
        site.set("/map.xml", answer)
        crawl(process, site, str(number))
        assert packed(process, site, str(number)) == pages, number


def test_a_sitemap_that_robots_txt_names_without_its_host_is_requested_until_it_is_read(
    process: Context, site: Site
) -> None:
    site.set("/robots.txt", robots("Sitemap: /sitemap.xml"))
    site.set("/sitemap.xml", reply(status=503))
    crawl(process, site, "one")
    named = CrawlUrl(site.at("/sitemap.xml"), site.domain, site.at("/sitemap.xml"))
    entry = explain_url(process.frontier, process.store, named, retry_ms=1_000).entry
    assert entry
    assert (entry.state, entry.referrer != "") == ("failed", True)


@pytest.mark.parametrize(
    ("answer", "pages"), [(reply("<html><body>Not found</body></html>"), 1), (reply(status=403), 2)]
)
def test_a_named_sitemap_that_was_never_read_keeps_pages_if_it_is_refused_and_not_if_it_is_an_error_page(
    process: Context, site: Site, answer: Answer, pages: int
) -> None:
    site.set("/robots.txt", robots(f"Sitemap: {site.at('/map.xml')}"))
    site.set("/map.xml", answer)
    crawl(process, site, "one")
    site.set("/", page("Home", "Amber, without a link"))
    crawl(process, site, "two")
    assert packed(process, site, "two") == pages


def test_sitemaps_on_forbidden_ports_or_of_an_index_on_other_hosts_are_not_requested(
    process: Context, site: Site
) -> None:
    with Site({"/far.xml": sitemap(site.at("/hidden"))}) as other:
        index = "".join(
            f"<sitemap><loc>{url}</loc></sitemap>"
            for url in (other.at("/far.xml"), f"http://{site.other_domain}/far.xml", site.at("/near.xml"))
        )
        site.set("/index.xml", reply(f"<sitemapindex>{index}</sitemapindex>"))
        site.set("/near.xml", sitemap(site.at("/hidden")))
        site.set("/far.xml", sitemap())
        site.set("/robots.txt", robots(f"Sitemap: {other.at('/far.xml')}\nSitemap: {site.at('/index.xml')}"))
        crawl(process, site, "one")
        assert other.requests == []
    assert [site.hits(path) for path in ("/index.xml", "/near.xml", "/far.xml", "/hidden")] == [1, 1, 0, 1]
    named = CrawlUrl(site.at("/index.xml"), site.domain, site.at("/index.xml"))
    entry = explain_url(process.frontier, process.store, named, retry_ms=1_000).entry
    assert entry
    assert entry.detail == "0 of 0 URLs, 3 sitemaps; 2 on other hosts or ports are left out"


def test_robots_txt_and_a_sitemap_that_pages_link_to_are_read_as_such_too(process: Context, site: Site) -> None:
    site.set("/", page("Home", "Amber", links=["/cedar", "/robots.txt", "/far.xml"]))
    # It may name a sitemap on any host.
    site.set("/robots.txt", robots(f"User-agent: *\nAllow: /\nSitemap: http://{site.other_domain}/far.xml"))
    site.set("/far.xml", redirect("/map.xml"))
    site.set("/map.xml", sitemap(site.at("/hidden")))
    crawl(process, site, "one")
    assert packed(process, site, "one") == 4  # With robots.txt, which is a text.
    assert reasons(process, site)["content-type"] == 1  # /map.xml, as a page.


def test_a_sitemap_beyond_the_cpu_limit_is_left_out_with_the_reason(process: Context, site: Site) -> None:
    crawl(process, site, "one")
    url = site.at("/map.xml")
    process.pages.run([CrawlUrl(url, site.domain, url, "one", 2, role=SITEMAP)], message_id="m", too_complex=True)
    assert site.hits("/map.xml") == 0
    assert process.frontier.figures("one").is_cut
    entry = explain_url(process.frontier, process.store, CrawlUrl(url, site.domain, url), retry_ms=1_000).entry
    assert entry
    assert (entry.state, entry.reason) == ("skipped", "too-complex")


def test_the_status_203_opens_no_other_way_for_the_content_of_a_sitemap(process: Context, site: Site) -> None:
    markup = b"<p>A page in the place of a <a href=/>sitemap</a></p>\n" * 20_000
    target = CrawlUrl(site.at("/sitemap.xml"), site.domain, site.at("/sitemap.xml"))
    reads, spent, memory = {}, {}, {}
    for status_code in (200, 203):
        site.set("/sitemap.xml", bomb(12 * 1024 * 1024, block=markup, status=status_code))
        began = time.process_time()
        reads[status_code] = process.pages.roles.read(process.url_runs.prepare(target))
        spent[status_code] = time.process_time() - began
        memory[status_code] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert reads[203] == reads[200]
    assert (reads[203].pages, reads[203].partial, reads[203].unproven) == ((), True, True)
    assert spent[203] < 5 * spent[200]
    assert memory[203] - memory[200] < 100_000  # kB
    site.set("/sitemap.xml", reply(f"<urlset><url><loc>{site.at('/hidden')}</loc></url></urlset>", status=203))
    found = process.pages.roles.read(process.url_runs.prepare(target))
    assert [page.url for page in found.pages] == [site.at("/hidden")]


def test_a_crawl_reads_a_thousand_sitemaps_and_the_status_says_so(process: Context, site: Site) -> None:
    begun = Crawl("one", site.domain, site.url, datetime.now(UTC), recorded=True)
    process.recorder.begin(begun, timer_timeout=30, callback=full_pack_callback(site.domain, "one").message)
    urls = [site.at(f"/{number}.xml") for number in range(1_300)]
    links = [FrontierUrl(url, url, 3, role=SITEMAP) for url in urls]
    host = Host(site.domain, 0, 1)
    for each in (links[:700], links[700:]):
        complete_one(process.frontier, "one", "page", each[0].canonical_key, host=host, links=each, max_pages=9)
    assert process.frontier.figures("one").left == 1_000
    assert process.frontier.figures("one").is_cut
    assert status(site.domain, settings=process.settings).reasons["max-sitemaps"] == 300
