"""The search page over real HTTP: what it says, links and asks for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from selectolax.lexbor import LexborHTMLParser, LexborNode

from app.broker.errors import ApplicationError, Overloaded, RequestTimedOut
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import ACTIVE_CRAWLS, Crawl, crawl_key
from app.crawl.record.keys import plain_id
from app.crawl.reports import first_crawls
from app.crawl.reports.first_crawls import CrawlsInRedis
from app.errors import NotPlaced, PackCorrupt, PackNotFound
from app.redis_state.client import get_redis
from app.storage.layout import Page
from app.web.application import create_app
from app.web.middleware import HEADERS
from app.web.static_files import static_path
from tests.packs import page, write_pack
from tests.support.proxy import Proxy
from tests.support.scripted import ScriptedSearchClient
from tests.support.waiting import eventually
from tests.support.web import served

pytestmark = pytest.mark.integration

MANY = [page(f"/many/{number}", f"Many {number}", "One of many pages", lang="en") for number in range(35)]
PAGES = [
    *MANY,
    page("/évil?a=1&b=2", "<script>alert(1)</script>", "<b>hostile</b> & 'quoted' \"body\"", lang='x" onload="'),
    page("/scheme", "Not for clicking", "dangerous", url="javascript:alert(1)"),
]
MIXED = [
    page("/guide/a", "A guide", "mixed words", lang="en", content_type="text/html", modified="2026-03-01"),
    page("/guide/b", "Another guide", "mixed words", lang="en", content_type="text/html", modified="2026-05-02"),
    page("/de/c", "Deutsch", "mixed words", lang="de", content_type="text/html"),
    page("/guide/d.pdf", "A paper", "mixed words", lang="en", content_type="application/pdf", modified="2024-01-31"),
]


@contextmanager
def serving(folder: Path, **sites: list[Page]) -> Iterator[tuple[httpx.Client, ScriptedSearchClient]]:
    """Serve packs of sites: `small` is small.example."""
    packs = [write_pack(folder / f"{name}.sqlite", pages, domain=f"{name}.example") for name, pages in sites.items()]
    search_client = ScriptedSearchClient(packs)
    with served(create_app(search_client)) as client:
        yield client, search_client


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, ScriptedSearchClient]]:
    with serving(tmp_path_factory.mktemp("packs"), site=PAGES) as served_site:
        yield served_site


@pytest.fixture
def search_client(one_site: tuple[httpx.Client, ScriptedSearchClient]) -> Iterator[ScriptedSearchClient]:
    yield one_site[1]
    one_site[1].behave()


@pytest.fixture
def client(one_site: tuple[httpx.Client, ScriptedSearchClient]) -> httpx.Client:
    return one_site[0]


def get(client: httpx.Client, path: str, status: int = 200, **params: str | int | list[str]) -> LexborHTMLParser:
    answer = client.get(path, params=params or None)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return LexborHTMLParser(answer.text)


def first(tree: LexborHTMLParser | LexborNode, selector: str) -> LexborNode:
    node = tree.css_first(selector)
    assert node is not None, selector
    return node


def text_of(tree: LexborHTMLParser | LexborNode, selector: str) -> str:
    return said(first(tree, selector))


def said(node: LexborNode) -> str:
    return " ".join(node.text().split())


def links(tree: LexborHTMLParser, selector: str) -> dict[str, str]:
    return {said(link): str(link.attributes["href"]) for link in tree.css(f"{selector} a")}


def test_the_start_page_is_a_labelled_search_form(client: httpx.Client) -> None:
    tree = get(client, "/")
    form = first(tree, "form")
    assert (form.attributes["role"], form.attributes["method"], form.attributes["action"]) == ("search", "get", "/")
    assert text_of(tree, "label[for=q]") == "Search site.example"
    assert first(tree, "input[name=domain]").attributes["value"] == "site.example"
    assert text_of(tree, "h1") == "Search site.example"
    assert text_of(tree, "footer") == "Index of site.example: 37 pages, as of 21 November 2026, 10:04 UTC"
    assert client.head("/").status_code == 200


def test_no_script_is_inline_and_the_page_links_its_opensearch_description(client: httpx.Client) -> None:
    tree = get(client, "/", q="many")
    assert [script.attributes["src"] for script in tree.css("script")] == [static_path("search.js")]
    assert not tree.css("style, [style], [onclick]")
    assert "script-src 'self'" in HEADERS["Content-Security-Policy"]
    described = first(tree, "link[rel=search]").attributes
    assert described["type"] == "application/opensearchdescription+xml"
    assert client.get(str(described["href"])).status_code == 200


def test_results_are_counted_marked_linked_and_paged(client: httpx.Client) -> None:
    tree = get(client, "/", q="many pages", page=2)
    assert re.fullmatch(r"Showing 11–20 of 35 for “many pages” \([\d.]+ m?s\)", text_of(tree, "[role=status]"))
    assert text_of(tree, "title") == "many pages (page 2) – site.example – Perennial"
    hits = tree.css("ol.hits > li")
    assert len(hits) == 10
    assert first(tree, "ol.hits").attributes["start"] == "11"
    assert str(first(hits[0], "h2 a").attributes["href"]).startswith("https://site.example/many/")
    assert first(hits[0], "h2 a").attributes["rel"] == "noreferrer"
    assert [mark.text() for mark in hits[0].css("mark")] == ["many pages"]
    assert first(hits[0], "h2").attributes["lang"] == "en"
    assert text_of(tree, "nav [aria-current=page]") == "Page 2"
    assert list(links(tree, "nav")) == ["Previous", "1", "3", "4", "Next"]
    assert len(LexborHTMLParser(client.get(links(tree, "nav")["4"]).text).css("ol.hits > li")) == 5
    assert first(tree, "input[name=q]").attributes["value"] == "many pages"


def test_each_reason_for_no_hits_has_its_own_message(client: httpx.Client) -> None:
    nothing = get(client, "/", q="nonexistent")
    assert text_of(nothing, "[role=status]") == "No page on site.example matches “nonexistent”."
    assert nothing.css("ul.hints li")
    never = get(client, "/", 404, domain="Never.EXAMPLE", q="x")
    assert text_of(never, "main h2") == "never.example was never indexed"
    assert "as soon as the first crawl has ended" in text_of(never, "main")
    assert not never.css("pre, code, progress")
    assert "there is no letter or digit" in text_of(get(client, "/", 400, q="?!"), "[role=alert]")
    assert "at most 255" in text_of(get(client, "/", 400, q="x" * 256), "[role=alert]")
    assert "no page “0”" in text_of(get(client, "/", 400, q="many", page="0"), "[role=alert]")
    assert "not sorted by “size”" in text_of(get(client, "/", 400, q="many", sort="size"), "[role=alert]")
    assert "at most 200" in text_of(get(client, "/", 400, q="many", section="x" * 201), "[role=alert]")
    assert "35 results" in text_of(get(client, "/", 404, q="many", page="5"), "main p")
    assert get(client, "/", 404, domain="../../etc/passwd", q="x").css("main h2")
    assert "not a valid URL" in text_of(get(client, "/", 400, domain="a b", q="x"), "[role=alert]")
    assert text_of(get(client, "/nowhere", 404), "main h1") == "404"


def test_pages_with_some_of_the_words_are_announced(client: httpx.Client) -> None:
    assert "some of them" in text_of(get(client, "/", q="many nonexistent"), ".notice")


def test_a_misspelt_word_finds_what_its_correction_finds(client: httpx.Client) -> None:
    tree = get(client, "/", q="hostlie")
    assert text_of(tree, ".meant") == "Showing results for hostile. Search instead for hostlie."
    assert "of 1 for “hostile”" in text_of(tree, ".count")
    assert first(tree, "input[name=q]").attributes["value"] == "hostlie"
    as_typed = first(tree, ".meant a").attributes["href"] or ""
    exact = get(client, as_typed)
    assert text_of(exact, ".meant") == "Did you mean hostile?"
    assert get(client, first(exact, ".meant a").attributes["href"] or "").css_first(".meant") is None


def test_pages_and_orders_of_corrected_results_keep_the_typed_query(client: httpx.Client) -> None:
    tree = get(client, "/", q="mayn pages", page=2)
    assert "11–20 of 35 for “many pages”" in text_of(tree, ".count")
    for link in tree.css(".sorts a, nav a"):
        assert parse_qs(urlsplit(link.attributes["href"] or "").query).get("q", ["mayn pages"]) == ["mayn pages"]


def test_texts_of_pages_and_queries_are_never_markup(client: httpx.Client) -> None:
    tree = get(client, "/", q="hostile")
    (hit,) = tree.css("ol.hits > li")
    assert text_of(tree, "ol.hits h2") == "<script>alert(1)</script>"
    assert text_of(tree, ".snippet") == "<b>hostile</b> & 'quoted' \"body\""
    assert not hit.css("[lang], script, b, [onload]")
    attack = '"><script>alert(1)</script>'
    echoed = get(client, "/", q=attack, section=attack, lang=attack)
    assert len(echoed.css("script")) == 1
    assert first(echoed, "input[name=q]").attributes["value"] == attack
    assert first(echoed, "input[name=section]").attributes["value"] == attack
    assert len(get(client, "/", 400, domain="<script>.example", q="x").css("script")) == 1


def test_only_web_addresses_become_links(client: httpx.Client) -> None:
    tree = get(client, "/", q="dangerous")
    assert text_of(tree, "ol.hits h2") == "Not for clicking"
    assert not tree.css("ol.hits a")


def test_letters_of_an_address_are_decoded_unless_they_could_deceive(tmp_path: Path) -> None:
    urls = ["https://small.example/%E6%97%A5%E6%9C%AC?q=%2Fx%20y", "https://small.example/%E2%80%AEfdp%FF"]
    pages = [page(f"/{at}", f"Address {at}", "letters", url=url) for at, url in enumerate(urls)]
    with serving(tmp_path, small=pages) as (client, _):
        shown = [said(each) for each in get(client, "/", q="letters").css(".address")]
    assert shown == ["small.example/日本?q=%2Fx%20y", "small.example/%E2%80%AEfdp%FF"]


def test_facets_filter_and_count_and_can_be_removed(tmp_path: Path) -> None:
    with serving(tmp_path, mixed=MIXED) as (client, _):
        tree = get(client, "/", q="mixed")
        assert list(links(tree, ".facets")) == [
            *("/guide/ 3 pages", "/de/ 1 page"),
            *("English 3 pages", "German 1 page"),
            *("Web page 3 pages", "PDF 1 page"),
        ]
        narrowed = get(client, links(tree, ".facets")["/guide/ 3 pages"])
        assert "of 3 for" in text_of(narrowed, "[role=status]")
        assert first(narrowed, "input[name=section]").attributes["value"] == "guide"
        papers = get(client, links(narrowed, ".facets")["PDF 1 page"])
        assert "of 1 for" in text_of(papers, "[role=status]")
        removing = links(narrowed, ".facets")["/guide/ 3 pages; remove this filter"]
        assert "of 4 for" in text_of(get(client, removing), "[role=status]")
        chosen = links(papers, ".filters")
        assert list(chosen) == [
            "Remove the filter Section: /guide/ ×",
            "Remove the filter Type: PDF ×",
            "Remove all filters",
        ]
        assert "of 1 for" in text_of(get(client, chosen["Remove the filter Section: /guide/ ×"]), "[role=status]")
        assert "of 4 for" in text_of(get(client, chosen["Remove all filters"]), "[role=status]")
        nothing = get(client, "/", q="mixed", section="de", type="application/pdf")
        assert text_of(nothing, "[role=status]").endswith("with these filters.")
        assert "of 4 for" in text_of(get(client, links(nothing, ".hints")["Search without filters"]), "[role=status]")


def test_results_can_be_sorted_by_date(tmp_path: Path) -> None:
    with serving(tmp_path, mixed=MIXED) as (client, _):
        tree = get(client, links(get(client, "/", q="mixed"), ".sorts")["Date"])
        assert text_of(tree, ".sorts [aria-current=true]") == "Date"
        assert [each.text() for each in tree.css("ol.hits time")] == ["2 May 2026", "1 March 2026", "31 January 2024"]
        assert first(tree, "input[name=sort]").attributes["value"] == "date"


def test_all_sites_are_searched_unless_some_are_chosen(tmp_path: Path) -> None:
    other = [page("/", "Other", "many")]
    with serving(tmp_path, site=PAGES, other=other, third=other) as (client, _):
        start = get(client, "/")
        assert text_of(start, "summary") == "All 3 sites"
        assert text_of(start, "h1") == "Search 3 sites"
        assert "of 37 for" in text_of(get(client, "/", q="many"), "[role=status]")
        tree = get(client, "/", q="many", domain=["other.example", "third.example"])
        assert "of 2 for" in text_of(tree, "[role=status]") or "of 1 for" in text_of(tree, "[role=status]")
        assert text_of(tree, "summary") == "Only other.example and third.example"
        checked = [str(box.attributes["value"]) for box in tree.css("input[type=checkbox][checked]")]
        assert checked == ["other.example", "third.example"]
        assert said(first(tree, ".address")).startswith("other.example")
        assert [said(each) for each in tree.css("footer p")] == [
            f"Index of {name}.example: 1 page, as of 21 November 2026, 10:04 UTC" for name in ("other", "third")
        ]
        both = get(client, "/", 404, q="many", domain=["other.example", "b.example", "c.example"])
        assert text_of(both, "main h2") == "b.example, c.example were never indexed"


def test_a_person_chooses_sites_if_there_are_too_many(tmp_path: Path) -> None:
    sites = {f"s{number}": [page("/", "Same", "many")] for number in range(17)}
    with serving(tmp_path, **sites) as (client, _):
        assert text_of(get(client, "/"), "legend") == "Choose up to 16 sites"
        refused = get(client, "/", 400, q="many")
        assert "choose up to 16 of them" in text_of(refused, "[role=alert]")
        assert "open" in first(refused, "details.sites").attributes
        assert "too many" in text_of(get(client, "/", 400, q="x", domain=[f"{name}.example" for name in sites]), "main")
        assert get(client, "/", q="many", domain=["s3.example"]).css("ol.hits")


def test_a_site_that_did_not_answer_is_reported_beside_the_results_of_others(tmp_path: Path) -> None:
    with serving(tmp_path, site=PAGES, other=PAGES) as (client, search_client):
        search_client.change = lambda found: replace(
            found, sources=found.sources[:1], silent=(("other.example", "timeout"),)
        )
        tree = get(client, "/", q="many")
        assert text_of(tree, ".notice").startswith("other.example did not answer, so its pages are missing below.")
        assert [said(each) for each in tree.css("footer p")] == [
            "Index of site.example: 37 pages, as of 21 November 2026, 10:04 UTC"
        ]


@pytest.mark.parametrize(
    ("fault", "status", "heading"),
    [
        (NotPlaced("site.example"), 503, "site.example cannot be searched at the moment"),
        (RequestTimedOut("3 s"), 504, "No answer came in time"),
        (Overloaded("busy"), 503, "Too many searches at the moment"),
        (PackCorrupt("schema"), 503, "The index of site.example cannot be read"),
        (PackNotFound("site.example"), 404, "site.example was never indexed"),
    ],
)
def test_each_error_has_its_own_message_and_a_link(
    client: httpx.Client, search_client: ScriptedSearchClient, fault: ApplicationError, status: int, heading: str
) -> None:
    search_client.fault = fault
    tree = get(client, "/", status, q="many")
    assert text_of(tree, "main h2") == heading
    assert first(tree, "input[name=q]").attributes["value"] == "many"
    if status >= 500:
        again = parse_qs(urlsplit(str(first(tree, ".again").attributes["href"])).query)
        assert again == {"domain": ["site.example"], "q": ["many"]}
        assert int(client.get("/", params={"q": "many"}).headers["retry-after"]) > 0


def test_the_form_keeps_its_values_while_routes_are_unknown(
    client: httpx.Client, search_client: ScriptedSearchClient
) -> None:
    search_client.unknown = True
    tree = get(client, "/", 503, q="many", domain=["site.example", "b.example"])
    assert text_of(tree, "main h2") == "The search cannot be reached"
    assert first(tree, "input[name=q]").attributes["value"] == "many"
    assert [box.attributes["value"] for box in tree.css("input[checked]")] == ["site.example", "b.example"]


def test_without_any_pack_the_page_says_when_a_site_can_be_searched_and_shows_no_command(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, _):
        tree = get(client, "/", q="x")
        assert text_of(tree, "h1") == "Nothing is indexed yet"
        assert "as soon as its first crawl has ended" in text_of(tree, "main")
        assert not tree.css("pre, code")
        assert not tree.css("form")


def test_a_visitor_sees_how_far_the_first_crawl_of_a_site_is(tmp_path: Path, redis_url: str) -> None:
    crawl = Crawl(id="c", domain="docs.example", start_url="https://docs.example/", started=datetime.now(UTC))
    frontier = Frontier(get_redis(redis_url))
    frontier.begin(crawl)
    get_redis(redis_url).hset(crawl_key("c"), mapping={"seen": 1_500, "done": 20, "dead": 1})
    get_redis(redis_url).sadd(ACTIVE_CRAWLS, plain_id("c"))
    crawls = CrawlsInRedis(redis_url)
    pack = write_pack(tmp_path / "site.sqlite", PAGES)
    for packs in ([pack], []):
        application = create_app(ScriptedSearchClient(packs), first_crawls=crawls)
        with served(application) as client:
            tree = get(client, "/", 404 if packs else 200, **({"domain": "docs.example", "q": "x"} if packs else {}))
            assert text_of(tree, ".crawl label") == (
                "docs.example is being crawled for the first time: 21 of 1,500 known pages are done."
            )
            assert first(tree, "progress").attributes["max"] == "1500"


def test_pages_of_unknown_sites_ask_a_silent_redis_once_in_seconds_and_searches_go_on(
    tmp_path: Path, redis_url: str
) -> None:
    pack = write_pack(tmp_path / "site.sqlite", PAGES)
    with closing(Proxy(redis_url)) as redis, ThreadPoolExecutor(60) as threads:
        application = create_app(
            ScriptedSearchClient([pack]), first_crawls=CrawlsInRedis(redis.url), rate_limit="1000/second"
        )
        redis.hold()
        began = time.monotonic()
        with served(application) as client:

            def visit(number: int) -> int:
                return client.get("/", params={"domain": f"unknown-{number}.example"}).status_code

            visits = [threads.submit(visit, number) for number in range(240)]
            for _ in range(20):
                assert client.get("/api/v1/search", params={"domain": "site.example", "q": "page"}).status_code == 200
            assert {each.result() for each in visits} == {404}
        # Each attempt holds a thread of the server for a second.
        assert redis.tried <= 2 + (time.monotonic() - began) / 5


def test_an_answer_about_first_crawls_is_kept_for_seconds_and_then_renewed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, crawls = get_redis(redis_url), CrawlsInRedis(redis_url)
    crawl = Crawl(id="c", domain="docs.example", start_url="https://docs.example/", started=datetime.now(UTC))
    Frontier(redis).begin(crawl)
    monkeypatch.setattr(first_crawls, "KEPT", 1.0)
    assert [each.done for each in crawls(["docs.example"])] == [0]
    began = time.monotonic()
    redis.hset(crawl_key("c"), "done", 7)
    eventually(lambda: [each.done for each in crawls(["docs.example"])] == [7], "the answer is a new one")
    assert time.monotonic() - began > 0.9


def test_sites_have_their_display_names_and_a_facet(tmp_path: Path) -> None:
    names = {"one.example": "The <First> Site"}
    pages = [page(f"/{word}", word, f"mixed {word}", url=f"https://one.example/{word}") for word in ("alpha", "beta")]
    packs = [
        write_pack(tmp_path / "one.sqlite", pages, domain="one.example"),
        write_pack(tmp_path / "two.sqlite", [page("/x", "Gamma", "mixed words")], domain="two.example"),
    ]
    with served(create_app(ScriptedSearchClient(packs), site_names=lambda: names)) as client:
        tree = get(client, "/", q="mixed")
        assert list(links(tree, ".facets")) == ["The <First> Site 2 pages", "two.example 1 page"]
        assert {said(each) for each in tree.css(".address b")} == {"The <First> Site", "two.example"}
        assert text_of(tree, ".sites").startswith("All 2 sites")
        only = get(client, links(tree, ".facets")["The <First> Site 2 pages"])
        assert text_of(only, "summary") == "Only The <First> Site"
        assert "of 2 for" in text_of(only, "[role=status]")
        assert text_of(only, "footer").startswith("Index of The <First> Site: 2 pages")


def test_a_page_of_results_with_all_that_it_loads_is_small_and_its_files_are_kept(client: httpx.Client) -> None:
    headers = {"Accept-Encoding": "gzip"}
    with client.stream("GET", "/", params={"q": "many"}, headers=headers) as answer:
        html = answer.read().decode()
        sizes = {"/": answer.num_bytes_downloaded}
    tree = LexborHTMLParser(html)
    files = [str(node.attributes["href"]) for node in tree.css("link[rel=stylesheet], link[rel=icon]")]
    files += [str(node.attributes["src"]) for node in tree.css("script, img")]
    for path in files:
        with client.stream("GET", path, headers=headers) as answer:
            answer.read()
            sizes[path] = answer.num_bytes_downloaded
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable", path
    assert len(sizes) == 4
    assert sum(sizes.values()) <= 15_000, sizes
    assert client.get("/static/style.css?v=0").headers["cache-control"] == "no-cache"
