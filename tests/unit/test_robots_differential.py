"""robots.txt beside an independent parser, robotspy: both decide equally where RFC 9309 leaves no choice."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from robots import RobotsParser

from app.crawl.fetch.robots import RobotsRules

pytestmark = pytest.mark.unit

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


@hypothesis_settings(max_examples=300)
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
        # Groups of one robot are combined, and of equally long rules the one that allows counts (2.2.1, 2.2.2).
        ("User-agent: Perennial/1.0\nDisallow: /a\nUser-agent: perennial\nAllow: /a", "/a", True),
        ("User-agent: *\nDisallow: /a\nUser-agent: perennial/2\nAllow: /b", "/a", True),
    ],
)
def test_the_standard_decides_where_parsers_differ(text: str, path: str, allowed: bool) -> None:
    assert RobotsRules.parse(text, user_agent="Perennial/0.1").allows(f"https://x.gov{path}") == allowed
