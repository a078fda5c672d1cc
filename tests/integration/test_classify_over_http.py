"""Fetch, robots and classification together, against a site that lies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.crawl.fetch.robots import RobotsRules, fetch_robots
from app.crawl.read.classify import FetchResult, Gone, Indexed, Redirected, Skipped, classify
from app.crawl.read.extract.extractors import extractor
from app.crawl.urls import Link, Scope
from app.errors import ForbiddenAddress, RobotsUnavailable
from app.http.fetcher import Fetcher
from tests.servers import hazards
from tests.servers.site import Site, failure, page, redirect, reply, robots

pytestmark = pytest.mark.integration


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(user_agent="Perennial/1", max_body_bytes=100_000, allow_private_hosts=("127.0.0.1",)) as fetcher:
        yield fetcher


def visit(site: Site, fetcher: Fetcher, path: str) -> FetchResult:
    return classify(fetcher.get(site.at(path)), scope=Scope(site.domain), extractor=extractor("lexbor"))


def test_pages_are_classified_and_decoded_despite_wrong_labels(site: Site, fetcher: Fetcher) -> None:
    greek = "<title>Καλημέρα κόσμε</title>"
    site.set("/meta", reply(b"<meta charset=iso-8859-7>" + greek.encode("iso8859-7"), content_type="text/html"))
    site.set("/header", reply(greek.encode("cp1253"), content_type="text/html; charset=windows-1253"))
    site.set("/zipped", hazards.zipped(greek.encode()))
    site.set("/pdf", reply(b"%PDF-1.7", content_type="text/html"))
    site.set("/octets", reply(greek, content_type="application/octet-stream"))
    site.set("/flood", hazards.endless())
    for path in ("/meta", "/header", "/zipped"):
        found = visit(site, fetcher, path)
        assert isinstance(found, Indexed)
        assert found.page.title == "Καλημέρα κόσμε"
        assert found.page.domain == site.domain
    skipped = [visit(site, fetcher, path) for path in ("/pdf", "/octets", "/flood")]
    assert [found.why for found in skipped if isinstance(found, Skipped)] == [
        "content-type",
        "content-type",
        "too-large",
    ]


def test_links_redirects_and_robot_headers_of_a_real_site(site: Site, fetcher: Fetcher) -> None:
    site.set("/", page("Home", links=["/a", f"http://{site.other_domain}/b", "http://[bad"]))
    site.set("/away", redirect(f"http://{site.other_domain}/"))
    site.set("/hidden", page("Hidden", links=["/a"], headers={"X-Robots-Tag": "noindex"}))
    home, link = visit(site, fetcher, "/"), Link(site.at("/a"), site.at("/a"), "/a")
    assert isinstance(home, Indexed)
    assert home.links == (link,)
    assert visit(site, fetcher, "/away") == Redirected(target=f"http://{site.other_domain}/", in_scope=False)
    assert visit(site, fetcher, "/hidden") == Gone(why="noindex", detail="X-Robots-Tag", links=(link,))
    assert visit(site, fetcher, "/none") == Gone(why="404")


def test_each_repeated_robot_header_addresses_its_own_robot(site: Site, fetcher: Fetcher) -> None:
    tags = "otherbot: noindex\r\nX-Robots-Tag: nofollow"
    site.set("/", page("Home", links=["/a"], headers={"X-Robots-Tag": tags}))
    found = visit(site, fetcher, "/")
    assert isinstance(found, Indexed)
    assert found.links == ()


def test_robots_txt_is_found_through_redirects_or_is_missing(site: Site, fetcher: Fetcher) -> None:
    site.set("/robots.txt", redirect("/moved.txt"))
    site.set("/moved.txt", robots("User-agent: perennial\nDisallow: /private"))
    text = fetch_robots(site.at("/any/page?x"), fetcher)
    rules = RobotsRules.parse(text, user_agent="Perennial/1")
    assert not rules.allows(site.at("/private/a"))
    assert rules.allows(site.at("/public"))
    site.set("/robots.txt", hazards.endless_redirect("/robots.txt"))
    assert fetch_robots(site.url, fetcher) == ""
    site.remove("/robots.txt")
    assert fetch_robots(site.url, fetcher) == ""
    site.set("/robots.txt", failure(503))
    with pytest.raises(RobotsUnavailable, match="503"):
        fetch_robots(site.url, fetcher)
    site.set("/robots.txt", hazards.reset())
    with pytest.raises(RobotsUnavailable):
        fetch_robots(site.url, fetcher)
    with pytest.raises(ForbiddenAddress):
        fetch_robots(f"http://{site.other_domain}/", fetcher)
