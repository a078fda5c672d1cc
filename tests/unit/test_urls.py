"""URLs: parsing, resolving links, canonical keys, scope, and traps."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress

import ada_url
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from w3lib.url import canonicalize_url

from app.crawl import urls
from app.crawl.path_rules import PathRules
from app.crawl.traps import charges, error_hash, text_hash
from app.crawl.urls import (
    MAX_SEGMENTS,
    Link,
    Scope,
    allows_port,
    are_full,
    canonical_key,
    host_of,
    is_trap,
    join_url,
    links_in_scope,
    parse_domain,
    parse_url,
    path_of,
    resolve,
)
from app.errors import InvalidUrl
from app.http.urls import without_credentials, without_credentials_in

pytestmark = pytest.mark.unit

BASE = "https://x.gov/docs/a/index.html?v=1"

hosts = st.sampled_from(["x.gov", "X.gov:443", "x.gov:8443", "bücher.example", "[::1]", "127.1", "a.x.gov", "x.gov."])
tails = st.text(st.sampled_from("abcXY019/.;:?&=%+~-_ é|[]^'\"\\#@,!*()$%2f%41%7E%zz"), max_size=30)
absolute = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https", "HTTPS"]), hosts, tails)


def links(hrefs: Iterable[str], base: str = BASE, *, limit: int, scope: Scope | None = None) -> tuple[Link, ...]:
    return links_in_scope(base, [(href, "") for href in hrefs], scope=scope or Scope("x.gov"), limit=limit)[0]


def parse(*, url: str = "", domain: str = "", **parts: str) -> str:
    return parse_url(url if url or not domain else join_url(domain, **parts))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"url": "Site.GOV/x"}, "https://site.gov/x"),
        ({"url": "//site.gov"}, "https://site.gov/"),
        ({"url": "site.gov:8080/x?b=1#f"}, "https://site.gov:8080/x?b=1"),
        ({"url": " https://site.gov:443/a/../b "}, "https://site.gov/b"),
        ({"url": "http://site.gov:80"}, "http://site.gov/"),
        ({"url": "https://Bücher.example/ä b?q=ä"}, "https://xn--bcher-kva.example/%C3%A4%20b?q=%C3%A4"),
        ({"url": "localhost:8000"}, "https://localhost:8000/"),
        ({"url": "site.gov/?u=http://other.gov"}, "https://site.gov/?u=http://other.gov"),
        ({"url": "http://0x7f.1/"}, "http://127.0.0.1/"),
        ({"domain": "Site.gov"}, "https://site.gov/"),
        ({"domain": "site.gov:81", "path": "a?b=1", "scheme": "http"}, "http://site.gov:81/a?b=1"),
        ({"domain": "site.gov", "path": "//evil.gov/x"}, "https://site.gov//evil.gov/x"),
        ({"domain": "intranet"}, "https://intranet/"),
        ({"domain": "site.gov", "url": "http://other.gov/"}, "http://other.gov/"),
    ],
)
def test_a_url_is_normalised(arguments: dict[str, str], expected: str) -> None:
    assert parse(**arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"url": ""}, "empty"),
        ({"url": "ftp://site.gov/"}, "'ftp://site.gov/'.*neither http nor https"),
        ({"url": "mailto:a@site.gov"}, "neither http nor https"),
        ({"url": "https://me:secret@site.gov/"}, "credentials"),
        ({"url": "https://"}, "no host"),
        ({"url": "https:///?q=1"}, "no host"),
        ({"url": "http://site.gov/\x00"}, "control characters"),
        ({"url": "http://site\n.gov/"}, "control characters"),
        ({"url": "garbage"}, "'garbage'.*neither a scheme nor a host"),
        ({"url": "some words"}, "neither a scheme nor a host"),
        ({"url": "http://[bad"}, "not a valid URL"),
        ({"url": "http://site.gov:99999/"}, "not a valid URL"),
        ({"url": "\ud800.gov"}, "not a valid URL"),
        ({"url": "https://site.gov/" + "a" * 2000}, "2017 characters, more than 2000"),
        ({"domain": "site.gov/x"}, "'site.gov/x'.*host name"),
        ({"domain": "me@site.gov"}, "host name"),
        ({"domain": "site.gov", "scheme": "gopher"}, "neither http nor https"),
    ],
)
def test_an_invalid_url_is_rejected_with_the_reason(arguments: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidUrl, match=reason):
        parse(**arguments)


@pytest.mark.parametrize("text", ["", " ", "/x", "//x/y", " /x", "\\x"])
def test_a_path_is_no_domain(text: str) -> None:
    with pytest.raises(InvalidUrl, match="expected the domain of a site"):
        parse_domain(text)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("b.html", "https://x.gov/docs/a/b.html"),
        ("../b.html#part", "https://x.gov/docs/b.html"),
        ("/faq", "https://x.gov/faq"),
        ("?v=2", "https://x.gov/docs/a/index.html?v=2"),
        ("", BASE),
        ("#top", BASE),
        ("//y.gov/z", "https://y.gov/z"),
        ("\thttps://X.gov\n/a b ", "https://x.gov/a%20b"),
        ("https:c.html", "https://x.gov/docs/a/c.html"),
        (r"\\y.gov\z", "https://y.gov/z"),
        ("..\\up.html", "https://x.gov/docs/up.html"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("mailto:a@x.gov", None),
        ("ftp://x.gov/", None),
        ("http://[bad", None),
        ("http://", None),
        ("http://me:pw@x.gov/", None),
        ("\ud800", None),
        ("x" * 2000, None),
    ],
)
def test_a_link_resolves_as_in_a_browser_or_to_none(link: str, expected: str | None) -> None:
    assert resolve(BASE, link) == expected


@given(st.one_of(st.text(), absolute, tails))
def test_resolving_never_raises_and_yields_only_short_plain_http(link: str) -> None:
    url = resolve(BASE, link)
    if url is not None:
        assert url.startswith(("http://", "https://"))
        assert "#" not in url
        assert resolve(BASE, url) == url


def test_domain_and_path_of_a_url() -> None:
    assert host_of("HTTPS://Site.gov:443/a?b#c") == "site.gov"
    assert host_of("https://site.gov:80/") == "site.gov:80"
    assert path_of("https://site.gov/a%20b?c=1#d") == "/a%20b?c=1"
    assert path_of("https://site.gov") == "/"
    assert path_of("https://site.gov?#?") == "/"
    assert path_of("https://site.gov/??") == "/??"
    with pytest.raises(InvalidUrl, match="'/a'"):
        host_of("/a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://x.gov/?b=2&a=1", "https://X.gov:443/?a=1&b=2#part"),
        ("https://x.gov/a%7eb", "https://x.gov/a~b"),
        ("https://x.gov/%c3%a4", "https://x.gov/ä"),
        ("https://x.gov/?q=a+b", "https://x.gov/?q=a%20b"),
        ("https://x.gov/a", "https://x.gov/a;jsessionid=0A1B?"),
        ("https://x.gov/a?id=1", "https://x.gov/a?PHPSESSID=0a1b&id=1"),
        ("https://x.gov/a?id=1", "https://x.gov/a?id=1&CFID=3&CFTOKEN=4"),
        ("https://x.gov/a", "https://x.gov/a?ASPSESSIONIDQQ=AB"),
        ("https://x.gov/a", "https://x.gov/a?sid=0123456789abcdef"),
        ("https://x.gov/a", "https://x.gov/a?sid=3fa9c0d1e2b4"),
        ("https://x.gov/a", "https://x.gov/a;sid=3fa9c0d1e2b4"),
        ("https://x.gov/a?b=1", "https://x.gov/a?utm_source=x&b=1&fbclid=A_-1&gclid=&utm_campaign_id=2"),
        ("https://x.gov/a", "https://x.gov/a?_ga=1.2&MC_CID=3"),
    ],
)
def test_two_spellings_of_one_page_have_one_key(one: str, other: str) -> None:
    assert canonical_key(one) == canonical_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://x.gov/a", "https://x.gov/a/"),
        ("https://x.gov/a", "https://x.gov/A"),
        ("https://x.gov/a", "http://x.gov/a"),
        ("https://x.gov/?a=1", "https://x.gov/?a="),
        ("https://x.gov/?sid=12", "https://x.gov/?sid=13"),
        ("https://x.gov/?a=1&a=2", "https://x.gov/?a=1"),
        ("https://x.gov/a%2Fb", "https://x.gov/a/b"),
        ("https://x.gov/?sid=internationalisation", "https://x.gov/"),
        ("https://x.gov/?session=fall2026", "https://x.gov/"),
        ("https://x.gov/?sid=20261122", "https://x.gov/"),
        ("https://x.gov/a;sid=12", "https://x.gov/a"),
        ("https://x.gov/?source=utm_source", "https://x.gov/"),
    ],
)
def test_two_pages_keep_two_keys(one: str, other: str) -> None:
    assert canonical_key(one) != canonical_key(other)


@given(absolute)
@example("https://x.gov/%2541?a=%2541")
@example("https://x.gov/a%23b?c%26=%3d")
def test_a_canonical_key_is_its_own_key(url: str) -> None:
    try:
        key = canonical_key(url)
    except InvalidUrl:
        return
    assert canonical_key(key) == key


names = st.text(st.sampled_from("ab.-_~09AZ"), min_size=1, max_size=4)


@given(st.lists(st.tuples(names, names), max_size=4), names)
def test_the_fast_path_to_a_canonical_key_agrees_with_w3lib(pairs: list[tuple[str, str]], path: str) -> None:
    query = "&".join(f"{name}={value}" for name, value in pairs)
    url = ada_url.normalize_url(f"https://x.gov/{path}" + ("?" + query if query else ""))
    assert urls._PLAIN.fullmatch(url.partition("?")[0])
    assert canonical_key(url) == canonicalize_url(url)


def test_a_scope_ends_at_a_label_and_at_a_port() -> None:
    exact, suffix = Scope("x.gov"), Scope("x.gov", "suffix")
    inside = ["https://x.gov/", "http://x.gov/a?b"]
    below = ["https://a.x.gov/", "https://a.b.x.gov/c"]
    outside = [
        "https://x.gov.evil.com/", "https://notx.gov/", "https://x.gov:8443/", "https://evil.com/x.gov",
        "https://evil.com?.x.gov", "ftp://x.gov/", "https://a.x.gov:81/", "", "/x.gov",
            "https://evil.com\\.x.gov/", "https://evil.com@x.gov/",
    ]  # fmt: skip
    assert all(scope.contains(url) for scope in (exact, suffix) for url in inside)
    assert [exact.contains(url) for url in below] == [False, False]
    assert [suffix.contains(url) for url in below] == [True, True]
    assert not any(scope.contains(url) for scope in (exact, suffix) for url in outside)
    assert Scope("x.gov:8443").contains("https://x.gov:8443/")
    assert Scope("x.gov:8443", "suffix").contains("https://a.x.gov:8443/")


@given(absolute, hosts)
def test_an_exact_scope_holds_what_has_its_domain(url: str, host: str) -> None:
    normal = resolve(BASE, url)
    domain = host_of(f"https://{host}/")
    if normal is not None:
        assert Scope(domain).contains(normal) == (host_of(normal) == domain)


def test_links_are_absolute_distinct_in_order_and_in_scope() -> None:
    hrefs = [
        "b.html", "http://[bad", "../c?y=2&x=1", "/docs/c?x=1&y=2", "https://other.gov/",
        "mailto:a@x.gov", "b.html", "/d", "", "e.html \n",
    ]  # fmt: skip
    assert links(hrefs, limit=10) == (
        Link("https://x.gov/docs/a/b.html", "https://x.gov/docs/a/b.html"),
        Link("https://x.gov/docs/c?y=2&x=1", "https://x.gov/docs/c?x=1&y=2"),
        Link("https://x.gov/d", "https://x.gov/d"),
        Link(BASE, BASE),
        Link("https://x.gov/docs/a/e.html", "https://x.gov/docs/a/e.html"),
    )
    assert len(links(hrefs, limit=2)) == 2


def test_a_link_has_the_texts_of_all_links_to_its_page() -> None:
    anchors = [("a?x=1&y=2", ""), ("b", "B"), ("a?y=2&x=1", "A"), ("a?x=1&y=2", "later"), ("c", "")]
    found, _ = links_in_scope("https://x.gov/", anchors, scope=Scope("x.gov"), limit=9)
    assert [(link.url, link.text) for link in found] == [
        ("https://x.gov/a?x=1&y=2", "A\nlater"),
        ("https://x.gov/b", "B"),
        ("https://x.gov/c", ""),
    ]


@given(absolute, st.text(st.sampled_from("ab.~/-_%:?"), max_size=12) | st.from_regex(r"(\.\./){0,4}[a-z/.]{0,9}"))
@example("https://x.gov?/a/b", "../c")
@example("https://x.gov/a/b//c", "../../d/")
@example("https://x.gov/a", "/")
@example("https://user@x.gov/a", "b")
def test_a_link_is_resolved_as_the_parser_of_urls_resolves_it(base: str, href: str) -> None:
    suffixes = Scope("gov", "suffix")
    found = [link.url for link in links([href], base, scope=suffixes, limit=1)]
    resolved = resolve(base, href)
    in_scope = resolved is not None and suffixes.contains(resolved) and not is_trap(resolved)
    assert found == ([resolved] if in_scope else [])


def test_trap_urls_are_left_out() -> None:
    traps = ["https://x.gov/a/x/b/x/c/x", "https://x.gov/a/a/a/", "https://x.gov/q/a/b/a/b/a/b/p.html"]
    pages = [
        "https://x.gov/a/x/b/x/c",
        "https://x.gov/2024/1/1/1/",
        "https://x.gov/a?b=/a/a/a",
        "https://x.gov/",
        "https://x.gov//////",
    ]
    assert [is_trap(url) for url in traps] == [True] * 3
    assert not any(is_trap(url) for url in pages)
    assert [is_trap("https://x.gov/f/x/f", max_repeated=times) for times in (1, 2)] == [True, False]
    assert [is_trap(traps[0], max_repeated=times) for times in (2, 3)] == [True, False]
    assert links([*traps, pages[0]], limit=9) == (Link(pages[0], pages[0]),)
    nested = ["https://x.gov/" + "/".join(map(str, range(MAX_SEGMENTS + more))) for more in (0, 1)]
    assert [is_trap(url) for url in (*nested, "https://x.gov/a/b?" + "/" * 100)] == [False, True, False]


def test_many_links_below_a_long_base_or_with_long_queries_cost_little() -> None:
    # Without bounds, the first takes 40 s: each of 380 segments was compared with all others.
    nested = "https://x.gov/" + "".join(f"a{number // 2}/" for number in range(380))
    queries = [f"?{'&'.join(f'{n}={m}' for n in range(250, 0, -1))}&é" for m in range(1_000)]
    began = time.process_time()
    assert links(map(str, range(20_000)), nested, limit=5_000) == ()
    assert len(links(queries, "https://x.gov/", limit=1_000)) < 200
    assert time.process_time() - began < 5


def test_links_end_at_a_number_of_characters_in_proportion_to_their_limit() -> None:
    hrefs = [f"{number:0480}" for number in range(20)]
    for limit, number in ((10, 6), (20, 11)):
        found = links(hrefs, "https://x.gov/", limit=limit)
        assert (len(found), are_full(found, limit=limit)) == (number, True)
        assert not are_full(found[:-1], limit=limit)
    assert are_full(links(map(str, range(20)), limit=10), limit=10)


def test_links_that_no_crawl_follows_leave_room_for_the_others() -> None:
    others = [f"https://other.gov/{number:0480}" for number in range(20)]
    traps = [f"a/a/a/{number:0480}" for number in range(20)]
    found = links([*others, *traps, "b"], limit=10)
    assert ([link.url for link in found], are_full(found, limit=10)) == (["https://x.gov/docs/a/b"], False)


@pytest.mark.parametrize(
    ("domain", "url", "ports", "allowed"),
    [
        ("x.gov", "https://y.gov/", (), True),
        ("x.gov", "http://y.gov:443/", (), True),
        ("x.gov", "https://y.gov:80/", (), True),
        ("x.gov", "http://y.gov:8080/", (), False),
        ("x.gov", "http://y.gov:8080/", (8080,), True),
        ("x.gov:8080", "http://y.gov:8080/", (), True),
        ("x.gov:8080", "http://y.gov:6379/", (), False),
        ("[::1]:8080", "http://[::1]:8080/", (), True),
        ("[::1]", "http://[::1]:1/", (), False),
    ],
)
def test_a_redirect_may_lead_to_few_ports(domain: str, url: str, ports: tuple[int, ...], allowed: bool) -> None:
    assert allows_port(domain, url, ports) == allowed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://x.gov/@me?a@b", "https://x.gov/@me?a@b"),
        ("https://user:pass@x.gov/@me", "https://***@x.gov/@me"),
        ("HTTPS:\\\\user:pa@ss@x.gov", "HTTPS:\\\\***@x.gov"),
        ("user:pass@x.gov/a", "***@x.gov/a"),
        ("https:user:pass@x.gov", "***@x.gov"),
        ("amqp://user:pa/ss@x.gov//", "amqp://***@x.gov//"),
        ("https://user:pa/ss@x.gov/", "https://***@x.gov/"),
        ("//user:pass@x.gov", "//***@x.gov"),
    ],
)
def test_a_url_is_shown_without_user_name_and_password(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@given(
    st.sampled_from(["https://", "http:", "//", "", "HTTP:/\\", " https://", "ftp://", "https:\t//"]),
    st.text(st.sampled_from("ab:@%/\\?# \n")),
    st.sampled_from(["x.gov/", "x.gov:99999/", "[::1", "x.gov/@a?b@c#d@e", ""]),
)
def test_no_error_about_a_url_shows_its_password(scheme: str, user: str, host: str) -> None:
    url = f"{scheme}{user}:hunter2@{host}"
    assert "hunter2" not in without_credentials_in(repr({"url": f"https://u:hunter2@{host}"}))
    with suppress(InvalidUrl):
        parse_url(url)
        return
    with pytest.raises(InvalidUrl) as caught:
        parse_url(url)
    if not re.search(r"[/\\?#]", user):
        assert "hunter2" not in str(caught.value)


def test_a_link_that_only_the_settings_of_its_site_keep_out_is_blocked() -> None:
    scope = Scope("x.gov", rules=PathRules(exclude=("/private",)))
    anchors = [("/a", ""), ("/private/b", ""), ("https://y.gov/private/c", "")]
    found, excluded = links_in_scope("https://x.gov/", anchors, scope=scope, limit=9)
    assert [link.url for link in found] == ["https://x.gov/a"]
    assert [(each.url, each.reason) for each in excluded] == [("https://x.gov/private/b", "blocked")]


@pytest.mark.parametrize(
    ("path", "other", "together"),
    [
        ("/calendar/2026/11/", "/calendar/2031/5/", True),
        ("/calendar/2026-11", "/calendar/1999-1", True),
        ("/s/3fa9c0d1e2b4/a", "/s/999999999999/b", True),
        ("/x/550e8400-e29b-41d4-a716-446655440000/a", "/x/0e8400aa-e29b-41d4-a716-446655440001/a", True),
        ("/article/17", "/article/18", True),
        ("/3.11/library/re.html", "/3.12/library/os.html", True),
        ("/old/a/", "/old/b/", True),
        ("/a?visit=1", "/b?visit=2", True),
        ("/a?x=1", "/a?y=1", False),
        ("/article/17", "/articles", False),
        ("/calendar/2026/", "/news/2026/", False),
        ("/about/face", "/deadbeef/face", False),
        ("/en/a", "/de/a", False),
    ],
)
def test_urls_of_one_directory_pattern_are_counted_together(path: str, other: str, together: bool) -> None:
    assert (charges(f"https://x.gov{path}") == charges(f"https://x.gov{other}")) == together
    assert charges(f"https://x.gov{path}") != charges(f"https://y.gov{path}")


def test_a_url_without_a_query_has_no_budget_of_pages() -> None:
    kinds = {
        path: "".join(charges(f"https://x.gov{path}")[::9]) for path in ("/", "/a/b", "/a/1", "/a?x", "/a?x=1&y=2")
    }
    assert kinds == {"/": "i", "/a/b": "i", "/a/1": "i", "/a?x": "d", "/a?x=1&y=2": "dv"}


def test_texts_are_identical_but_for_digits_and_the_path_of_the_page() -> None:
    assert text_hash("May 2031", "No events. 1 2", "/c/5") == text_hash("May 1999", "No events. 31", "/c/6")
    assert text_hash("Oops", "Nothing at /old/a", "/old/a") == text_hash("Oops", "Nothing at /old/bcd", "/old/bcd")
    assert text_hash("May", "", "/c/5") != text_hash("June", "", "/c/6")
    assert text_hash("a", "b", "/") != text_hash("", "a b", "/")
    assert text_hash("", "is/as", "/a") != text_hash("", "iss", "/a")


def test_error_pages_are_equal_whether_they_repeat_the_path_or_its_last_part_and_a_page_without_text_is_none() -> None:
    assert error_hash("Oops", "No /old/amber", "/old/amber") == error_hash(
        "Oops", "No /perennial-soft-404-check-1", "/perennial-soft-404-check-1"
    )
    assert error_hash("Oops", "No amber here", "/old/amber/") == error_hash("Oops", "No cedar here", "/cedar")
    assert error_hash("Oops", "No amber", "/x") != error_hash("Oops", "No cedar", "/x")
    assert error_hash("Oops", " ", "/x") == ""


@given(st.text(), st.text(max_size=50))
def test_any_url_and_text_has_charges_and_a_hash(url: str, text: str) -> None:
    found = charges(url)
    assert len(found) in (9, 18)
    assert found[0] in "di"
    assert len(text_hash(text, url, text)) == 8
