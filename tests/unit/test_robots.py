"""robots.txt and X-Robots-Tag, also beside an independent parser."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from protego import Protego
from robots import RobotsParser

from app.crawl.frontier.robots_cache import ParsedFiles
from app.crawl.parse.classify import robots_directives
from app.crawl.policy import product_token
from app.crawl.robots import MAX_BYTES, MAX_CRAWL_DELAY, RobotsRules, fetch_robots, own_lines
from app.crawl.urls import robots_url
from app.errors import ConnectionFailed, FetchError, ForbiddenAddress, RobotsUnavailable
from app.http.response import Response

pytestmark = pytest.mark.unit

AGENT = "Perennial/0.1 (+https://example.org/)"


def parse(text: str) -> RobotsRules:
    return RobotsRules.parse(text, user_agent=AGENT)


class Answers:
    """Returns scripted responses, and records the requested URLs."""

    def __init__(self, answers: dict[str, Response | FetchError]) -> None:
        self.answers = answers
        self.requested: list[str] = []

    def get(self, url: str, *, max_bytes: int = 0) -> Response:
        self.requested.append(url)
        answer = self.answers.get(url, Response(url, 404, {}, b"not here"))
        if isinstance(answer, FetchError):
            raise answer
        return replace(answer, body=answer.body[:max_bytes], truncated=len(answer.body) > max_bytes)


def at(path: str, status: int = 200, body: bytes = b"", **headers: str) -> dict[str, Response | FetchError]:
    url = "https://x.gov" + path
    return {url: Response(url, status, headers, body)}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/private/a", "line 7: disallow : /private # not for robots"),
        ("/private/open/b", "line 10: Disallow: /private/open/b"),
        ("/%70rivate/a", "line 7: disallow : /private # not for robots"),
        ("/find?q=a&print=1", "line 11: Disallow: *print=1$"),
        ("/\u00e4/x", "line 12: Disallow /%C3%A4"),
        ("/a/b/c", "line 17: Disallow: /a/*/c"),
    ],
)
def test_a_denial_names_the_line_that_decides(path: str, line: str) -> None:
    text = (
        "\ufeff# ours\nUser-agent: *\nDisallow: /\n\nUser-agent: other\r\nUser-Agent: Perennial/2\r\n"
        "disallow : /private # not for robots\nSitemap: https://x.gov/s.xml\nAllow: /private/open\n"
        "Disallow: /private/open/b\nDisallow: *print=1$\nDisallow /%C3%A4\n\nUser-agent: third\nDisallow: /a/b/c\n"
        "User-agent: perennial\nDisallow: /a/*/c\nDisallow: /a/b\n"
    )
    assert parse(text).denial(f"https://x.gov{path}") == f"robots.txt, {line}"
    assert parse("User-agent: *\nDisallow: /").denial("https://x.gov/") == "robots.txt, line 2: Disallow: /"


@pytest.mark.parametrize(
    ("line", "delay"),
    [("Crawl-delay: 600", 30.0), ("Crawl-delay: 0", None), ("Crawl-delay: soon", None), ("Request-rate: 1/5", 5.0)],
)
def test_a_crawl_delay_is_bounded(line: str, delay: float | None) -> None:
    assert parse(f"User-agent: *\n{line}").crawl_delay == delay


def test_a_robot_is_the_name_before_its_version_and_robots_txt_is_at_the_root_of_the_origin() -> None:
    assert [product_token(agent) for agent in (AGENT, "7bot")] == ["Perennial", "7bot"]
    assert robots_url("https://x.gov:8443/a/b?c#d") == "https://x.gov:8443/robots.txt"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_client_error_allows_everything(status: int) -> None:
    assert fetch_robots("https://x.gov/a", Answers(at("/robots.txt", status, b"User-agent: *\nDisallow: /"))) == ""


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_error_forbids_until_it_ends(status: int) -> None:
    with pytest.raises(RobotsUnavailable, match=str(status)):
        fetch_robots("https://x.gov/a", Answers(at("/robots.txt", status)))


def test_a_failed_request_forbids_and_a_private_host_is_an_error_of_its_own() -> None:
    with pytest.raises(RobotsUnavailable, match="refused"):
        fetch_robots("https://x.gov/a", Answers({"https://x.gov/robots.txt": ConnectionFailed("refused")}))
    with pytest.raises(ForbiddenAddress):
        fetch_robots("https://x.gov/a", Answers({"https://x.gov/robots.txt": ForbiddenAddress("private")}))


def test_five_redirects_are_followed_and_no_more() -> None:
    chain: dict[str, Response | FetchError] = at("/robots.txt", 301, location="/1")
    for hop in range(1, 5):
        chain |= at(f"/{hop}", 302, location=f"/{hop + 1}")
    fetcher = Answers(chain | at("/5", 200, b"User-agent: *\nDisallow: /"))
    assert fetch_robots("https://x.gov/", fetcher).endswith("Disallow: /")
    fetcher = Answers(chain | at("/5", 302, location="/6") | at("/6", 200, b"User-agent: *\nDisallow: /"))
    assert fetch_robots("https://x.gov/", fetcher) == ""
    assert len(fetcher.requested) == 6


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("file:///etc/passwd", ""),
        ("http://[bad", ""),
        ("http://me:pw@x.gov/", ""),
        ("http://10.0.0.1/", ""),
        ("http://y.gov:8080/r", ""),
        ("http://y.gov:81/r", "no"),
        ("//y.gov:443/r", "no"),
    ],
)
def test_a_redirect_to_an_invalid_or_private_address_or_another_port_is_no_robots_txt(location: str, text: str) -> None:
    found, private = Response(location, 200, {}, b"no"), {"http://10.0.0.1/": ForbiddenAddress("private")}
    answers = {**at("/robots.txt", 301, location=location), location: found, "https://y.gov/r": found, **private}
    assert fetch_robots("https://x.gov/", Answers(answers), ports=(81,)) == text


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_long_file_is_cut_at_a_line(end: bytes) -> None:
    body = b"\xef\xbb\xbfUser-agent: *" + end + (b"Disallow: /abcdefgh" + end) * 30_000
    text = fetch_robots("https://x.gov/", Answers(at("/robots.txt", 200, body)))
    assert text.startswith("User-agent")
    assert text.endswith(f"Disallow: /abcdefgh{end.decode()}")
    assert MAX_BYTES - 100 < len(text) <= MAX_BYTES


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], set()),
        (["NoIndex, nofollow"], {"noindex", "nofollow"}),
        (["otherbot: noindex, nofollow"], set()),
        (["otherbot: noindex", "noarchive"], {"noarchive"}),
        (["PERENNIAL: none"], {"none"}),
        (["otherbot: noindex, perennial: nofollow"], {"nofollow"}),
        (["*: noindex"], {"noindex"}),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST, noindex"], {"unavailable_after", "noindex"}),
        (["max-snippet:10, nofollow"], {"max-snippet", "nofollow"}),
    ],
)
def test_an_x_robots_tag_may_address_one_robot(values: list[str], expected: set[str]) -> None:
    assert robots_directives(values, "Perennial") == expected


def test_only_the_groups_of_this_robot_and_of_all_robots_count() -> None:
    assert not parse("User agent: a\nuseragent PERENNIAL/2.0\nDisallow: /x").allows("https://x.gov/x")
    assert parse("User-agent: p\nDisallow: /\nUser-agent: perennialbot\nDisallow: /").allows("https://x.gov/x")
    assert not parse("User-agent: a # b\nUser-agent: * # all\nDisallow: /x").allows("https://x.gov/x")
    assert not parse("\ufeffUser-agent: *\nDisallow: /x").allows("https://x.gov/x")
    assert parse("<html>not found</html>").allows("https://x.gov/x")


@hypothesis_settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["User-agent: *", "User-agent: PERENNIAL", "User-agent: other", "User-agent:",
                             "user agent x", "Disallow: /a", "Allow: /a/b", "disallow /b", "x: y", "nothing",
                             "Sitemap: https://x.gov/s", "Sitemap", "Host: x.gov", "# c", "#", "Crawl-delay: 3", ""]),
            st.builds("{}{}{}".format, st.sampled_from(["Disallow: ", "Allow:", "disallow ", "Crawl-delay: "]),
                      st.sampled_from(["", "/", "5"]), st.text(st.sampled_from("ab*$/%4?=#é "), max_size=6)),
        )
    ),
    st.text(st.sampled_from("ab/%4?=é"), max_size=6),
)  # fmt: skip
def test_the_lines_of_a_robot_and_their_bounds_keep_the_meaning_and_the_numbers_of_a_small_file(
    lines: list[str], path: str
) -> None:
    rules = parse("\n".join(lines))
    # Protego ends a list of robots at an unknown record, which the standard forbids (RFC 9309 section 2.2.4).
    plain = Protego.parse("\n".join(line for line in lines if line != "x: y"))
    for url in (f"https://x.gov/{each}" for each in ("a", "a/b", "b", "c", path)):
        assert rules.allows(url) == plain.can_fetch(url, "Perennial")
    delay = min(plain.crawl_delay("Perennial") or 0, MAX_CRAWL_DELAY) or None
    assert (rules.crawl_delay, set(rules.sitemaps)) == (delay, set(plain.sitemaps))
    assert parse(rules.lines).lines == rules.lines
    kept = {number: line for number, line in enumerate(rules.lines.split("\n")) if line and "agent" not in line}
    assert kept == {number: lines[number] for number in kept}


def test_groups_of_other_robots_and_comments_are_not_kept() -> None:
    others = "".join(f"User-agent: other{n}\nDisallow: /{n}  # not for it\n\n" for n in range(1_000))
    text = f"{others}User-agent: Perennial\nDisallow: /private/  # ours\n{others}User-agent: *\nDisallow: /\n"
    lines = own_lines(text, "Perennial")
    assert lines.strip() == "User-agent: *\nDisallow: /private/  # ours"
    assert len(lines) < 4_000
    assert parse(lines).denial("https://x.gov/private/a") == "robots.txt, line 3002: Disallow: /private/  # ours"


def test_invalid_bytes_take_no_more_room_than_the_limit() -> None:
    text = fetch_robots("https://x.gov/", Answers(at("/robots.txt", 200, b"Disallow: /\xff\xff\xff\n" * 30_000)))
    assert len(text.encode()) <= MAX_BYTES
    assert text.endswith("Disallow: /\ufffd\ufffd\ufffd\n")


HALF_A_MEGABYTE = {
    "robots and rules": "User-agent: *\n" + "".join(f"User-agent: a{n}\n" for n in range(13_000))
    + "".join(f"Disallow: /{n}\n" for n in range(14_000)),
    "wildcards": "User-agent: *\n" + "".join(f"Disallow: *{n}a\n" for n in range(24_000)),
    "wildcards in a rule": "User-agent: *\nDisallow: /" + "*a" * 240_000,
    "prefixes": "User-agent: *\n" + "".join(f"Disallow:/aa{n}\n" for n in range(24_000)) + "Allow:/a",
    "ends": "User-agent: *\n" + "".join(f"Disallow:/{n}$\n" for n in range(24_000)),
    "robots": "User-agent: perennial*\n" * 22_000 + "Disallow: /b",
}  # fmt: skip


@pytest.mark.parametrize("name", HALF_A_MEGABYTE)
def test_the_largest_file_is_parsed_and_matched_in_little_time(name: str) -> None:
    text = HALF_A_MEGABYTE[name][:MAX_BYTES]
    assert len(text) > 300_000
    began = time.process_time()
    rules = parse(text)
    parsed = time.process_time()
    for number in range(10):
        rules.allows(f"https://x.gov/a{number}/" + "a" * 1_900)
    assert parsed - began < 2
    assert (time.process_time() - parsed) / 10 < 0.06


def test_a_wildcard_after_the_last_that_is_matched_forbids_more_and_allows_nothing() -> None:
    rules = parse("User-agent: *\n" + "Disallow: /x*x\n" * 9 + "".join(f"Disallow: /*{n}\n" for n in range(4_999))
                  + "Disallow: /a/*b\nAllow: /a/*\nDisallow: /c/*d*e")  # fmt: skip
    allowed = {path: rules.allows(f"https://x.gov{path}") for path in ("/x", "/y/4998", "/a/c", "/b", "/c/")}
    assert allowed == {"/x": True, "/y/4998": False, "/a/c": False, "/b": True, "/c/": False}
    rules = parse("User-agent: *\nDisallow: " + "*a" * 6_000)
    assert not rules.allows("https://x.gov/b")


def test_parsed_files_are_bounded_by_number_and_by_length() -> None:
    kept, rules = ParsedFiles(files=3, characters=100), parse("")
    for number in range(4):
        kept.put(str(number), rules, 10)
    assert [kept.get(str(number)) is rules for number in range(4)] == [False, True, True, True]
    assert kept.get("1") is rules
    kept.put("4", rules, 81)
    assert [kept.get(str(number)) is rules for number in range(5)] == [False, True, False, False, True]
    kept.put("5", rules, 1_000)
    kept.put("5", rules, 1_000)
    assert (len(kept), kept.get("5")) == (1, rules)
    kept.put("5", rules, 1)
    kept.put("6", rules, 99)
    assert len(kept) == 2


_OWN = st.lists(
    st.sampled_from(["Perennial", "PERENNIAL", "Perennial/1.0", "perennial/2", "Perennial Bot"]), min_size=1, max_size=3
)
_OTHERS = st.lists(st.sampled_from(["other", "perennialbot", "Perenni", "x/2"]), min_size=1, max_size=2, unique=True)
# Left out are patterns in which the parsers differ, and ours follows the RFC or forbids more: see docs/decisions.
_PATTERNS = (
    "", "/", "/a", "/ab", "/a/b", "/a/", "/*b", "/a$", "/a*b$", "/$", "/%61", "/ä", "/%C3%A4", "/a?x=1", "/*?", "/~a",
    "/%7Ea", "/*.cgi$",
)  # fmt: skip
_RULES = st.lists(
    st.builds("{}: {}".format, st.sampled_from(["Disallow", "Allow", "disallow", "ALLOW"]), st.sampled_from(_PATTERNS)),
    min_size=1,
    max_size=5,
)
_PATHS = (
    "/", "/a", "/ab", "/aab", "/a/b", "/a/", "/ä", "/%C3%A4", "/%c3%a4", "/a?x=1", "/a?", "/b", "/%61b", "/~a", "/%7Ea",
    "/a$", "/a*b", "/x.cgi", "/x.cgi?y",
)  # fmt: skip


@st.composite
def robots_files(draw: st.DrawFn) -> str:
    """Return a robots.txt of up to five groups, with comments, blank lines and sitemaps between the lines."""
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        agents = draw(st.one_of(_OWN, _OTHERS, st.just(["*"])))
        for line in (*(f"User-agent: {agent}" for agent in agents), *draw(_RULES)):
            lines += [line, *draw(st.sampled_from([(), (), ("",), ("# c",), ("Sitemap: https://x.gov/s.xml",)]))]
    return "\n".join(lines)


@hypothesis_settings(max_examples=150)
@given(robots_files())
def test_an_independent_parser_decides_equally(text: str) -> None:
    ours, theirs = RobotsRules.parse(text, user_agent="Perennial/0.1"), RobotsParser.from_string(text)
    urls = [f"https://x.gov{path}" for path in _PATHS]
    assert {url: ours.allows(url) for url in urls} == {url: theirs.can_fetch("Perennial", url) for url in urls}
    denials = [ours.denial(url) for url in urls if not ours.allows(url)]
    assert all(re.match(r"robots.txt, line \d+: (?i:disallow)", denial) for denial in denials)


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        # A reserved character is not the same as its escape (RFC 9309 section 2.2.2).
        ("User-agent: *\nDisallow: /a/b", "/a%2Fb", True),
        ("User-agent: *\nDisallow: /a%2Fb", "/a/b", True),
        # A group may have no rules: it is still the robot's own (section 2.2.1).
        ("User-agent: *\nDisallow: /\nUser-agent: Perennial", "/a", True),
        # Other records are no part of a group, and end none (section 2.2.4).
        ("User-agent: Perennial\nSitemap: https://x.gov/s\nUser-agent: other\nDisallow: /", "/a", False),
        ("User-agent: Perennial\nContent-Signal: search=yes\nUser-agent: *\nDisallow: /", "/a", False),
        # Groups of one robot are combined, and of equally long rules the one that allows counts (2.2.1, 2.2.2).
        ("User-agent: Perennial/1.0\nDisallow: /a\nUser-agent: perennial\nAllow: /a", "/a", True),
        ("User-agent: *\nDisallow: /a\nUser-agent: perennial/2\nAllow: /b", "/a", True),
    ],
)
def test_the_standard_decides_where_parsers_differ(text: str, path: str, allowed: bool) -> None:
    assert RobotsRules.parse(text, user_agent="Perennial/0.1").allows(f"https://x.gov{path}") == allowed
