"""Classification of responses, and the date of a page."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.crawl.page import entry_of
from app.crawl.parse.classify import FetchResult, Limits, classify, modified_date
from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor
from app.crawl.parse.extract.contract import Extractor
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.urls import CrawlUrl, Link, Scope, canonical_key
from app.errors import ServerError
from app.http.response import Response, retry_after
from app.storage.layout import Page
from app.storage.page_parts import Block, PageLink
from tests.servers.site import document

pytestmark = pytest.mark.unit

URL = "https://x.gov/docs/a.html?v=1"
PARSERS: dict[str, Extractor] = {"lexbor": LexborExtractor(), "beautifulsoup": BeautifulSoupExtractor()}


def classified(
    body: bytes | str = b"",
    status: int = 200,
    *,
    truncated: bool = False,
    url: str = URL,
    parser: str = "lexbor",
    **headers: str,
) -> FetchResult:
    fields = {"content-type": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
    data = body.encode() if isinstance(body, str) else body
    return classify(
        Response(url, status, fields, data, truncated),
        scope=Scope("x.gov"),
        extractor=PARSERS[parser],
        limits=Limits(links=3),
    )


def redirected(target: str, *, in_scope: bool = True) -> FetchResult:
    return FetchResult(
        "redirected", "redirect", target, links=(Link(target, canonical_key(target)),) if in_scope else ()
    )


def indexed(body: bytes | str, *, url: str = URL, parser: str = "lexbor", **headers: str) -> Page:
    found = classified(body, 200, truncated=False, url=url, parser=parser, **headers)
    assert found.state == "indexed"
    assert found.page
    assert [link.url for link in found.page.links] == list(urls(found))
    return found.page


def page(head: str = "", *links: str) -> str:
    return document("Title", "text", links=links, extra_head=head)


def urls(result: FetchResult | Page) -> tuple[str, ...]:
    return tuple(link.url for link in result.links)


def test_a_page_is_indexed_with_its_links() -> None:
    found = indexed(page("", "b.html#x", "https://y.gov/", "/c", "/d", "/e"))
    assert urls(found) == ("https://x.gov/docs/b.html", "https://x.gov/c", "https://x.gov/d")
    assert (found.canonical_key, found.url, found.domain) == (URL, URL, "x.gov")
    assert (found.path, found.title, found.lang) == ("/docs/a.html?v=1", "Title", "en")
    assert (found.headings, found.content_type, found.canonical) == (("Title",), "text/html", "")
    assert found.body.startswith("Title text b.html#x")
    assert found.links[0] == PageLink("https://x.gov/docs/b.html", "b.html#x")


def test_a_page_has_the_date_that_it_or_its_server_gives() -> None:
    served = {"last_modified": "Fri, 02 Jan 2015 00:00:00 GMT", "date": "Sat, 21 Nov 2026 12:00:00 GMT"}
    said = page('<meta property="article:modified_time" content="2016-03-04T05:06:07Z">')
    for body, headers, expected in (
        (said, served, "2016-03-04"),
        (page(), served, "2015-01-02"),
        (page(), served | {"last_modified": served["date"]}, ""),
        ("text", served | {"content_type": "text/plain"}, "2015-01-02"),
    ):
        found = indexed(body, **headers)
        assert found.modified == expected


def test_links_are_resolved_against_the_base_of_the_page() -> None:
    assert classified(page('<base href="/base/x">', "b")) == classified(page('<base href="https://x.gov/base/">', "b"))
    found = indexed(page('<base href="http://[bad">', "b"))
    assert urls(found) == ("https://x.gov/docs/b",)


@pytest.mark.parametrize(
    ("head", "header", "expected"),
    [
        (
            '<meta name="robots" content="noindex">',
            "",
            FetchResult("gone", "noindex", "<meta>", links=(Link("https://x.gov/b", "https://x.gov/b", "/b"),)),
        ),
        ('<meta name="perennial" content="NONE">', "", FetchResult("gone", "noindex", "<meta>")),
        ('<meta name="robots" content="noindex, nofollow">', "", FetchResult("gone", "noindex", "<meta>")),
        (
            "",
            "noindex",
            FetchResult("gone", "noindex", "X-Robots-Tag", links=(Link("https://x.gov/b", "https://x.gov/b", "/b"),)),
        ),
        ("", "noarchive\nperennial: none", FetchResult("gone", "noindex", "X-Robots-Tag")),
        ("", "otherbot: noarchive, *: none", FetchResult("gone", "noindex", "X-Robots-Tag")),
    ],
)
def test_a_noindex_page_is_gone_and_its_links_may_be_followed(head: str, header: str, expected: FetchResult) -> None:
    assert classified(page(head, "/b"), x_robots_tag=header) == expected


@pytest.mark.parametrize(("head", "header"), [('<meta name="robots" content="nofollow">', ""), ("", "nofollow")])
def test_the_links_of_a_nofollow_page_are_not_followed(head: str, header: str) -> None:
    found = indexed(page(head, "/b"), x_robots_tag=header)
    assert found.links == ()
    assert indexed(page("", "/b"), x_robots_tag="otherbot: noindex").links


@pytest.mark.parametrize(
    ("href", "canonical"),
    [
        ("/docs/other#x", "https://x.gov/docs/other"),
        ("a.html?v=1", ""),
        ("https://elsewhere.org/docs/a.html", ""),
        ("http://[bad", ""),
        ("/docs/a.html", "https://x.gov/docs/a.html"),
    ],
)
@pytest.mark.parametrize("by_header", [False, True])
def test_a_canonical_url_in_scope_is_followed_and_any_other_is_ignored(
    href: str, canonical: str, by_header: bool
) -> None:
    tag, header = f'<link rel="canonical" href="{href}">', f'</style>; rel=preload, <{href}>; rel="Canonical"'
    found = indexed(page(), link=header) if by_header else indexed(page(tag))
    assert found.canonical == canonical
    assert urls(found) == ((canonical,) if canonical else ())


def test_alternates_of_a_page_are_followed_after_its_links() -> None:
    tags = '<link rel=alternate hreflang=de href=de><link rel=alternate type="application/rss+xml" href=feed>'
    found = classified(
        page(tags, "/b"), link='</en>; rel=alternate; hreflang=en, <https://y.gov/fr>; rel=alternate; hreflang="fr"'
    )
    assert urls(found) == ("https://x.gov/b", "https://x.gov/docs/de", "https://x.gov/en")
    assert urls(classified(page(f"{tags}<meta name=robots content=nofollow>", "/b"))) == ()


@pytest.mark.parametrize(
    "header",
    [
        '</b>; rel=next; title="the canonical page; rel=canonical"',
        '</b>; rel=canonical; anchor="/other"',
        "</b>; rel=next; rel=canonical",
        "</b>; rel=stylesheet; hreflang=de",
        "</b>; rel=alternate; title=hreflang",
    ],
)
def test_another_link_of_a_header_is_neither_a_canonical_url_nor_an_alternate(header: str) -> None:
    found = indexed(page(), link=header)
    assert (found.canonical, found.alternates, urls(found)) == ("", (), ())


def test_the_parameters_of_a_link_of_a_header_may_be_written_with_spaces() -> None:
    found = indexed(page(), link='</b> ; REL = "x canonical" ; type="text/html", </c>;hreflang=de;rel=alternate')
    assert (found.canonical, found.alternates) == ("https://x.gov/b", ("https://x.gov/c",))


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("0;url=/b", "https://x.gov/b"),
        ("5; URL='b?a;b'", "https://x.gov/docs/b?a;b"),
        (' 1.5 , url = "/b" x', "https://x.gov/b"),
        ("0 /b", "https://x.gov/b"),
        ("0; //y.gov/", "https://y.gov/"),
        ("6; url=/b", ""),
        ("3", ""),
        ("0; url=", ""),
        ("0; url=a.html?v=1#top", ""),
        ("0; url=http://x.gov:22/", ""),
        ("url=/b", ""),
    ],
)
@pytest.mark.parametrize("parser", PARSERS)
def test_a_refresh_within_five_seconds_is_a_redirect(content: str, target: str, parser: str) -> None:
    tag = f"<meta http-equiv=Refresh content='{content}'>" if "'" not in content else (
        f'<meta http-equiv=Refresh content="{content}">')  # fmt: skip
    found = classified(page(tag, "/c"), parser=parser)
    if target:
        assert found == redirected(target, in_scope="x.gov" in target)
    else:
        assert urls(found) == ("https://x.gov/c",)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_refresh_for_browsers_without_javascript_or_of_a_nofollow_page_is_ignored(parser: str) -> None:
    refresh = "<meta http-equiv=refresh content='0;url=/b'>"
    for head in (f"<noscript>{refresh}</noscript>", f"<meta name=robots content=nofollow>{refresh}"):
        indexed(page(head), parser=parser)


def test_a_refresh_header_within_five_seconds_is_a_redirect() -> None:
    other = page("<meta http-equiv=refresh content='0;url=/c'>")
    for body in (page(), other, ""):
        assert classified(body, refresh="0; url=/b") == redirected("https://x.gov/b")
    for header in ("30; url=/b", "5", "url=/b", ""):
        assert classified(page(), refresh=header).state == "indexed"


def test_a_long_link_header_is_read_in_little_time() -> None:
    began = time.process_time()
    for header in ("<" * 60_000, '<a>;"' * 12_000, "<a>" + " ;" * 30_000):
        indexed(page(), link=header)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/b", redirected("https://x.gov/b")),
        ("https://x.gov:443/b", redirected("https://x.gov/b")),
        ("http://y.gov:443/b", redirected("http://y.gov:443/b", in_scope=False)),
        (
            "https://x.gov:8443/b",
            FetchResult("skipped", "invalid-redirect", "to https://x.gov:8443/b, whose port ALLOW_PORTS does not name"),
        ),
        ("//y.gov", redirected("https://y.gov/", in_scope=False)),
        ("http://x.gov/docs/a.html?v=1", redirected("http://x.gov/docs/a.html?v=1")),
        ("/é".encode().decode("latin-1"), redirected("https://x.gov/%C3%A9")),
        ("#here", FetchResult("skipped", "invalid-redirect", "to itself")),
        ("/docs/a.html;jsessionid=1?v=1", FetchResult("skipped", "invalid-redirect", "to itself")),
        ("//user:pass@x.gov/", FetchResult("skipped", "invalid-redirect", "to '//***@x.gov/'")),
        ("file:///etc/passwd", FetchResult("skipped", "invalid-redirect", "to 'file:///etc/passwd'")),
        ("", FetchResult("skipped", "invalid-redirect", "to ''")),
    ],
)
def test_a_redirect_has_its_target_and_whether_that_is_in_scope(location: str, expected: FetchResult) -> None:
    for status in (301, 302, 303, 307, 308):
        assert classified(b"", status, location=location) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, FetchResult("gone", "404")),
        (410, FetchResult("gone", "410")),
        (403, FetchResult("skipped", "403")),
        (206, FetchResult("skipped", "206")),
        (304, FetchResult("unchanged", "not-modified")),
        (300, FetchResult("skipped", "300")),
    ],
)
def test_a_status_other_than_200_is_classified(status: int, expected: FetchResult) -> None:
    assert classified(page("", "/b"), status) == expected


VALIDATORS = {"etag": ' W/"a-é" ', "last_modified": "Sat, 21 Nov 2026 12:00:00 GMT"}


@pytest.mark.parametrize(
    ("status", "content_type"),
    [(200, "text/html"), (200, "image/png"), (203, "text/plain"), (304, ""), (404, "text/html")],
)
def test_a_result_has_the_status_and_the_validators_of_its_response(status: int, content_type: str) -> None:
    found = classified(page(), status, truncated=False, content_type=content_type, **VALIDATORS)
    assert (found.status, found.etag, found.last_modified) == (status, 'W/"a-é"', VALIDATORS["last_modified"])
    entry = entry_of(CrawlUrl(URL, "x.gov", URL), found)
    assert (entry.status, entry.etag, entry.last_modified) == (found.status, found.etag, found.last_modified)


@pytest.mark.parametrize("value", ["x" * 201, 'a"\r\nX: y', '"\0"', '"\x85"', '"€"', '"\x7f"'])
def test_a_validator_that_is_long_or_cannot_be_sent_is_left_out(value: str) -> None:
    found = classified(page(), etag=value, last_modified=value)
    assert (found.status, found.etag, found.last_modified) == (200, "", "")


@pytest.mark.parametrize("status", [429, 408, 500, 599])
def test_a_transient_status_is_raised_as_a_server_error(status: int) -> None:
    with pytest.raises(ServerError, match=f"a.html.*{status}") as caught:
        classified(b"", status, retry_after="120")
    assert caught.value.retry_after == 120


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("999999999", 3600.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
        (formatdate(1_000_060, usegmt=True), 60.0),
        (formatdate(999_000, usegmt=True), 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_is_capped(value: str, seconds: float | None) -> None:
    assert retry_after(value, cap=3600, now=1_000_000) == seconds


@pytest.mark.parametrize("value", ["Mon Jan 12 13:47:40 1970", "Mon, 12 Jan 1970 13:47:40 -0000"])
def test_a_retry_after_without_a_zone_is_utc_wherever_the_process_runs(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert retry_after(value, cap=3600, now=1_000_000) == 60.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_retry_after_counts_from_now() -> None:
    seconds = retry_after(formatdate(time.time() + 100, usegmt=True), cap=3600)
    assert seconds is not None
    assert 90 < seconds <= 101


@pytest.mark.parametrize(
    ("body", "label"),
    [
        (page(), "application/octet-stream"),
        (page(), "application/json"),
        (b"%PDF-1.7 ...", "text/html"),
        (b"\x89PNG\r\n", "text/html; charset=utf-8"),
        (b"GIF89a", "text/plain"),
        (b"text\x00\x01\x02", "text/plain"),
        (b"just words", ""),
    ],
)
def test_a_body_that_is_not_text_by_label_or_content_is_skipped(body: bytes | str, label: str) -> None:
    assert classified(body, content_type=label) == FetchResult("skipped", "content-type", label)


@pytest.mark.parametrize(
    ("body", "label", "kind"),
    [
        (page(), "Text/HTML ; charset=utf-8", "text/html"),
        (page(), "application/xhtml+xml", "application/xhtml+xml"),
        (page(), "", "text/html"),
        (page().encode("utf-16"), "text/html", "text/html"),
        (page().encode("utf-16le"), "text/html; charset=utf-16le", "text/html"),
    ],
)
def test_a_page_is_indexed_under_its_media_type(body: bytes | str, label: str, kind: str) -> None:
    found = indexed(body, content_type=label)
    assert (found.content_type, found.title) == (kind, "Title")


@pytest.mark.parametrize(
    ("name", "title"),
    [("J%C3%A4hrlicher%20Bericht.txt", "Jährlicher Bericht.txt"), ("a%0A%00b%FF", "a b\ufffd"), ("", "")],
)
def test_a_text_has_its_file_name_as_people_read_it_for_a_title(name: str, title: str) -> None:
    assert indexed("Text", content_type="text/plain", url=f"https://x.gov/{name}").title == title


@pytest.mark.parametrize("declaration", ['<meta charset="iso-8859-1">', '<?xml version="1.0" encoding="koi8-r"?>'])
def test_a_text_that_shows_how_html_declares_an_encoding_has_none_itself(declaration: str) -> None:
    found = indexed(f"{declaration}\nZürich", content_type="text/markdown")
    assert found.body == f"{declaration} Zürich"
    assert indexed("Zürich".encode("latin-1"), content_type="text/plain; charset=latin1").body == "Zürich"


def test_an_element_of_xhtml_that_closes_itself_is_empty() -> None:
    head = "<title/><script src='x'/><style\ntype='text/css' />"
    body = "<div class='a'/><iframe src='frame'/><br/><p>First<br/>line</p><textarea/><a href='b'/><p>Last</p>"
    xhtml = f"<html xmlns='http://www.w3.org/1999/xhtml'><head>{head}</head><body>{body}</body></html>"
    found = indexed(xhtml, content_type="application/xhtml+xml")
    assert (found.body, urls(found)) == ("First line Last", ("https://x.gov/docs/frame", "https://x.gov/docs/b"))


@pytest.mark.parametrize("label", ["text/plain", "text/markdown"])
def test_plain_text_is_a_page_without_links(label: str) -> None:
    found = indexed("See <a href='/b'>\nhere", content_type=label, url="https://x.gov/notes/read%20me.txt?x")
    assert (found.title, found.body, found.links) == ("read me.txt", "See <a href='/b'> here", ())
    assert found.blocks == (Block(("See <a href='/b'> here",)),)
    assert classified("hidden", content_type=label, x_robots_tag="noindex") == FetchResult(
        "gone", "noindex", "X-Robots-Tag"
    )


def test_the_part_read_of_a_page_that_is_too_large_gives_its_links() -> None:
    body = '<a href="/a">A</a> some text <a href="/cut'
    links = (Link("https://x.gov/a", "https://x.gov/a", "A"),)
    assert classified(body, truncated=True) == FetchResult(
        "skipped", "too-large", f"over {len(body)} bytes", links=links
    )


def test_a_page_that_is_empty_without_javascript_is_skipped_and_its_links_are_followed() -> None:
    shell = '<title>App</title><div id="root"></div><a href="/b"></a>'
    links = (Link("https://x.gov/b", "https://x.gov/b"),)
    assert classified(shell + "<script src=/app.js></script>") == FetchResult("skipped", "empty", links=links)
    indexed(shell)


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20T23:59:59-05:00", "2026-11-20"),
        ("2026-11-20 10:00", "2026-11-20"),
        ("20261120", "2026-11-20"),
        ("Fri, 20 Nov 2026 10:00:00 GMT", "2026-11-20"),
        ("2026-11-22", "2026-11-22"),
        ("2026-11-23", ""),
        ("1989-12-31", ""),
        ("1990-01-01", "1990-01-01"),
        ("0000-00-00", ""),
        ("yesterday", ""),
        ("2026", ""),
        ("", ""),
    ],
)
def test_a_plausible_date_of_a_page_is_its_date(given: str, expected: str) -> None:
    assert modified_date([given], {}, now=NOW) == expected


def test_the_first_plausible_date_counts() -> None:
    headers = {"last-modified": "Thu, 01 Jan 2015 00:00:00 GMT", "date": DATE}
    assert modified_date(["1970-01-01", "2020-02-02", "2021-01-01"], headers, now=NOW) == "2020-02-02"
    assert modified_date(["1970-01-01"], headers, now=NOW) == "2015-01-01"


@pytest.mark.parametrize(
    ("modified", "answered", "expected"),
    [
        ("Sat, 21 Nov 2026 11:58:59 GMT", DATE, "2026-11-21"),
        ("Sat, 21 Nov 2026 11:59:30 GMT", DATE, ""),
        (DATE, DATE, ""),
        ("Sat, 21 Nov 2026 12:00:30 GMT", DATE, ""),
        ("Thu, 01 Jan 1970 00:00:00 GMT", DATE, ""),
        ("Fri, 20 Nov 2026 12:00:00 GMT", "", "2026-11-20"),
        (DATE, "", ""),
        ("soon", DATE, ""),
        ("Fri, 20 Nov 2026 12:00:00 GMT", "0001-01-01T00:00:00", "2026-11-20"),
    ],
)
def test_last_modified_counts_unless_it_is_the_time_of_the_response(
    modified: str, answered: str, expected: str
) -> None:
    assert modified_date([], {"last-modified": modified, "date": answered}, now=NOW) == expected


@given(st.lists(st.text(max_size=40) | st.dates().map(str) | st.datetimes().map(str)), st.text(), st.text())
@example(["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"], "Mon, 32 Foo 99999 99:99:99 +9999", "")
def test_any_dates_give_a_plausible_date_or_none(given: list[str], modified: str, answered: str) -> None:
    found = modified_date(given, {"last-modified": modified, "date": answered}, now=NOW)
    assert found == "" or date(1990, 1, 1) <= date.fromisoformat(found) <= date(2026, 11, 22)
