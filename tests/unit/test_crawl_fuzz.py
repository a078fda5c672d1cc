"""Anything that a site or a message may contain: page bytes, robots.txt, headers, URLs. None raises a stray error."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.broker.errors import ApplicationError
from app.crawl.parse.classify import FetchResult, Limits, classify, robots_directives
from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor
from app.crawl.parse.extract.contract import Extractor
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.robots import RobotsRules
from app.crawl.urls import Scope, canonical_key, parse_crawl_url, path_of, resolve
from app.errors import ServerError
from app.http.response import Response
from app.storage.layout import to_json

pytestmark = pytest.mark.unit

SCOPE = Scope("x.gov", "suffix")
PIECES = [
    "<", ">", "</", "/>", "<!--", "-->", "<!", "<?xml", "<![CDATA[", "]]>", "=", '"', "'", " ", "\0", "&#0;",
    "&#xD800;", "&amp", "<p>", "</p>", "<b>", "</b>", "<a href=", "</a>", "<table>", "<td>", "<svg>", "<title>",
    "</title>", "<script>",
    "<template>", "</template>", "<select>", "<math>", "<h1>", "<main>", "<base href=", "<body lang=", "<html lang=",
    "<link rel=canonical href=", "<meta name=robots content=", "<meta charset=", "<time datetime=", "noindex", "utf-16",
    '<script type="application/ld+json">', '{"dateModified":', "[" * 30, "2020-01-01", "http://x.gov/", "//x.gov:1/",
    "http://u:p@x.gov/", "javascript:", "\ud800", "\udfff", "\x85", "\u2028", "é", "\U0001f600", "¶", "\ufeff",
]  # fmt: skip
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.characters()), max_size=20).map("".join)
codecs = st.sampled_from(["utf-8", "utf-16", "utf-16-le", "latin-1", "cp1252", "shift_jis", "iso2022_jp", "utf-7"])
bodies = st.one_of(st.binary(max_size=200), st.builds(lambda text, name: text.encode(name, "replace"), soup, codecs))
labels = st.sampled_from(
    ["", "text/html", "text/plain", "application/xhtml+xml; charset=utf-16", "text/html; charset=shift_jis",
     "text/html;;", "text/html; charset=\x00", "TEXT/HTML; CHARSET='x-user-defined'", "text/html; charset=replacement"]
)  # fmt: skip
header_names = st.sampled_from(["location", "x-robots-tag", "last-modified", "retry-after", "date"])
headers = st.dictionaries(
    header_names, st.one_of(st.text(st.characters(max_codepoint=255), max_size=30), soup), max_size=3
)
statuses = st.sampled_from([200, 200, 200, 203, 301, 302, 404, 410, 429, 500, 999])
parsers = st.sampled_from([LexborExtractor(), BeautifulSoupExtractor()])
lines = st.lists(
    st.one_of(
        soup,
        st.builds("{}{}{}".format,
                  st.sampled_from(["User-agent", "user agent", "Disallow", "allow", "Crawl-delay", "Request-rate"]),
                  st.sampled_from([":", " ", ": ", "::"]),
                  st.one_of(soup, st.sampled_from(["*", "perennial", "/*$", "1/0s", "1e999", "-1", "nan", "%"]))),
    ),
    max_size=12,
).map("\n".join)  # fmt: skip
short = st.text(st.sampled_from("xX.:/?#@%\\[]é-_=& \t\ud800"), max_size=12)
values = st.one_of(short, st.sampled_from([None, True, 7, -1, 0.5, [], ["https://x.gov/"], {"a": 1}, 10**30]))
names = st.sampled_from(["url", "domain", "path", "scheme", "crawl_id", "depth"])
messages = st.dictionaries(names, st.one_of(values, st.sampled_from(["https://x.gov/", "x.gov", "/a", "http"])))

#: For `make test-all`: new examples in each run.
thorough = settings(max_examples=1_000, derandomize=False)


def check_response(status: int, body: bytes, label: str, fields: dict[str, str], parser: Extractor) -> None:
    response = Response("https://x.gov/a?b", status, {"content-type": label, **fields}, body)
    try:
        result: FetchResult = classify(response, scope=SCOPE, extractor=parser, limits=Limits(links=5))
    except ServerError:
        assert status in (429, 500, 999)
        return
    assert (result.page is not None) == (result.state == "indexed")
    assert len(result.links) <= 5
    for link in result.links:
        assert SCOPE.contains(link.url)
        target = parse_crawl_url({"url": link.url})
        assert (target.url, target.canonical_key) == (link.url, link.canonical_key)
    if result.page:
        assert json.loads(to_json(result.page))


def check_robots(text: str, tail: str) -> None:
    # As decoding leaves it, and as a URL parser does: without lone surrogates.
    text = text.encode("utf-8", "replace").decode()
    rules = RobotsRules.parse(text, user_agent="Perennial/1")
    url = resolve("https://x.gov/", tail.encode("utf-8", "replace").decode()) or "https://x.gov/"
    assert rules.allows(url) in (True, False)
    assert rules.crawl_delay is None or 0 < rules.crawl_delay <= 30
    assert all(robots_directives(text.split("\n"), "Perennial"))


def check_message(message: dict[str, Any]) -> None:
    with suppress(ApplicationError):
        target = parse_crawl_url(message)
        assert Scope(target.domain, "suffix").contains(target.url)
        assert canonical_key(target.canonical_key) == target.canonical_key
        assert path_of(target.url).startswith("/")
        assert parse_crawl_url({"url": target.url}).canonical_key == target.canonical_key


any_response = given(statuses, bodies, labels, headers, parsers)
any_robots_txt = given(lines, soup)
any_message = given(messages)

test_any_response_is_classified = any_response(check_response)
test_any_robots_txt_has_rules = any_robots_txt(check_robots)
test_any_message_names_a_page_or_is_refused = any_message(check_message)

test_any_of_many_responses_is_classified = pytest.mark.long(thorough(any_response(check_response)))
test_any_of_many_robots_txt_has_rules = pytest.mark.long(thorough(any_robots_txt(check_robots)))
test_any_of_many_messages_names_a_page_or_is_refused = pytest.mark.long(thorough(any_message(check_message)))
