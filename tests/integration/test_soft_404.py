"""Pages that a site answers with status 200 although they do not exist: a crawl recognises them by one probe."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from app.crawl.frontier.values import Crawl
from app.crawl.urls import Target
from tasks.base import Context
from tests.integration.test_recrawl import crawl, packed, reasons
from tests.integration.test_tick import process
from tests.servers.site import Answer, Request, Site, failure, page, reply, robots

pytestmark = pytest.mark.integration

__all__ = ["process"]


def oops(name: str, *links: str) -> Answer:
    """Answer with an error page; its links have no text."""
    anchors = "".join(f'<a href="{link}"></a>' for link in links)
    return reply(f"<!doctype html><title>Oops</title><h1>Oops</h1><p>Sorry, there is no {name} here</p>{anchors}")


class SoftSite(Site):
    """A site that answers 200 to any path, with a page that repeats the path or its last part."""

    def route(self, request: Request) -> Answer:
        path = request.path
        if path in self._routes:
            return self._routes[path]
        return oops(path if "old" in path else path.rpartition("/")[2], "/from-an-error-page")


@pytest.fixture
def site(process: Context) -> Iterator[SoftSite]:
    process.probes._probes = True
    links = ["/docs/amber", "/docs/missing", "/old/path", "/docs/birch"]
    with SoftSite({"/": page("Home", "Welcome", links=links)}) as site:
        site.set("/docs/amber", page("A", "Amber"))
        site.set("/docs/birch", page("B", "Birch"))
        yield site


def probes(site: Site) -> list[int]:
    """Return the positions of the probes in the requests for pages."""
    pages = [path for path in site.paths() if path not in ("/robots.txt", "/sitemap.xml")]
    return [at for at, path in enumerate(pages) if path.startswith("/perennial-probe-")]


def test_pages_with_the_text_of_the_error_page_are_not_indexed(process: Context, site: SoftSite) -> None:
    crawl(process, site, "one")
    assert reasons(process, site) == {"indexed": 3, "soft-404": 2}
    assert packed(process, site, "one") == 3
    assert probes(site) == [1]  # After the start page, before all others.
    assert "/from-an-error-page" not in site.paths()

    # A page that is removed becomes an error page: what was stored of it goes.
    site.remove("/docs/birch")
    crawl(process, site, "two")
    assert reasons(process, site)["soft-404"] == 3
    assert packed(process, site, "two") == 2
    assert len(probes(site)) == 2


def test_a_start_page_that_is_also_the_error_page_is_indexed(process: Context, site: SoftSite) -> None:
    site.set("/", oops("", "/docs/missing", "/docs/amber"))
    crawl(process, site, "one")
    assert reasons(process, site) == {"indexed": 2, "soft-404": 1}


@pytest.mark.parametrize("status", [404, 503])
def test_a_site_with_proper_errors_has_no_soft_404(
    process: Context, site: SoftSite, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.set("/robots.txt", robots(""))
    site.set("/docs/missing", oops("missing"))
    site.set("/old/path", oops("path"))
    monkeypatch.setattr(site, "route", lambda request: site._routes.get(request.path, failure(status)))
    crawl(process, site, "one")
    assert reasons(process, site) == {"indexed": 5}
    assert len(probes(site)) == 1


def test_a_probe_whose_response_takes_too_much_time_is_not_requested_again(process: Context, site: SoftSite) -> None:
    started = Crawl("one", site.domain, site.url, datetime.now(UTC), own=True)
    process.records.begin(started, timer_timeout=30, callback={})
    url = site.at("/perennial-probe-0")
    target = Target(url, site.domain, url, "one", depth=1, role="probe")
    completed = process.probes.run(target, message_id="m", too_complex=True)
    assert (completed.ended, probes(site)) == (True, [])
