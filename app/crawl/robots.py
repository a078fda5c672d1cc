"""The robots.txt of a host: fetch it, the rules that it has for one robot, and the line that forbids (RFC 9309)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from protego import Protego

from app.counters import ROBOTS_REQUESTS, status_label
from app.crawl.policy import MAX_RETRY_AFTER, product_token
from app.crawl.urls import allows_port, host_of, resolve, robots_url
from app.errors import FetchError, ForbiddenAddress, RobotsUnavailable
from app.http.response import REDIRECTS, Response

#: Bytes of a robots.txt that are read; RFC 9309 section 2.5 requires at least this many.
MAX_BYTES = 500 * 1024
#: Redirects followed to a robots.txt; RFC 9309 section 2.3.1.2 recommends at least five.
MAX_REDIRECTS = 5
#: Seconds: a longer Crawl-delay is cut to this, for its site would never be done.
MAX_CRAWL_DELAY = 30.0
#: Sitemaps of a robots.txt that are read.
MAX_SITEMAPS = 500

#: Wildcards of a robots.txt that are matched. Real files have some hundreds.
_MAX_WILDCARDS = 5_000
_ALLOW_LINE = re.compile(r"allow(?=[\s:])", re.I)

#: Characters of a line that are shown.
MAX_SHOWN = 200
#: Lines that are compared with one URL, the longest ones. Real files have a few that begin as its path does.
_MAX_COMPARED = 200

_AGENT = re.compile(r"user[\s-]*agent(?=[\s:]|$)[\s:]*(.*)", re.I)
#: With the misspellings that Protego reads, and with a space in place of the colon.
_DISALLOW = re.compile(r"d[is]+a[sl]*l[ao]w(?:\s*:|\s)\s*(.+)", re.I)
#: Lines that belong to no group.
_SITEMAP = re.compile(r"(?:sitemaps?|site-map)(?=[\s:]|$)", re.I)
#: Lines that mean something to a robot, and end a list of robots. Unknown ones must not (RFC 9309 section 2.2.4).
_RULE = re.compile(r"(?:allow|d[is]+a[sl]*l[ao]w|crawl[\s-]+delay|request[\s-]+rate|visit[\s-]+time)(?=[\s:]|$)", re.I)
#: Begins each group of `own_lines`.
OWN_AGENT = "User-agent: *"


class Getter(Protocol):
    """Gets a URL without following redirects, as Fetcher does."""

    def get(self, url: str, *, max_bytes: int = 0) -> Response:
        """Return the response, its body cut at `max_bytes`; raises FetchError."""


def fetch_robots(url: str, fetcher: Getter, *, ports: Collection[int] = ()) -> str:
    """Return the text of the robots.txt for `url`; empty, which allows everything, where there is no valid one.

    Any 4xx but 429 and more than five redirects count as no robots.txt (RFC 9309 section 2.3.1). So does a redirect to
    an invalid URL, a private address or another port than 80, 443, that of `url`, and `ports`.
    Raises RobotsUnavailable for 5xx, 429 and a failed request, with the seconds of a Retry-After header. Raises
    ForbiddenAddress when the host itself has a private address.
    """
    target: str | None = robots_url(url)
    for hop in range(MAX_REDIRECTS + 1):
        if target is None or not allows_port(host_of(url), target, ports):
            return ""
        try:
            response = fetcher.get(target, max_bytes=MAX_BYTES)
        except FetchError as error:
            ROBOTS_REQUESTS.add(error.reason)
            if not isinstance(error, ForbiddenAddress):
                raise RobotsUnavailable(f"{target}: {error}") from error
            if hop == 0:
                raise
            return ""
        ROBOTS_REQUESTS.add(status_label(response.status))
        if response.status == 429 or response.status >= 500:
            wait = response.retry_after(cap=MAX_RETRY_AFTER)
            raise RobotsUnavailable(f"{response.url}: {response.status}", wait)
        if response.ok:
            # Each invalid byte becomes three: the bytes that are kept are counted.
            body = response.body.decode("utf-8-sig", "replace").encode()
            if response.truncated or len(body) > MAX_BYTES:  # Without its last line: a part of a rule is another rule.
                body = body[: max(body.rfind(end, 0, MAX_BYTES) for end in (b"\n", b"\r")) + 1]
            return body.decode()
        if response.status not in REDIRECTS:
            return ""
        target = resolve(target, response.headers.get("location", "http://"))
    return ""


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """The rules of one robots.txt for one robot.

    `crawl_delay` is in seconds, None where the file sets none; `requested_delay` is the same before it was cut.
    """

    crawl_delay: float | None
    requested_delay: float
    #: URLs of sitemaps, as written. They belong to no group.
    sitemaps: tuple[str, ...]
    #: The lines that address the robot, each with its number in the file. They have the same rules as the file.
    lines: str
    _rules: Protego
    _token: str
    #: The lines as they are matched.
    _bounded: str

    @classmethod
    def parse(cls, text: str, *, user_agent: str) -> RobotsRules:
        """Parse a robots.txt for the robot of this User-Agent; `crawl_delay` is at most MAX_CRAWL_DELAY.

        Never raises: invalid lines are ignored. After 5,000 wildcards, a Disallow holds for all that begins as it does
        before its first wildcard. An Allow with a wildcard is then ignored.
        """
        token = product_token(user_agent)
        lines = own_lines(text.removeprefix("\ufeff"), token)
        bounded = _bounded(lines)
        rules = Protego.parse(bounded)
        rate = rules.request_rate(token)
        by_rate = rate.seconds / rate.requests if rate and rate.requests else 0.0
        requested = max(rules.crawl_delay(token) or 0.0, by_rate)
        sitemaps = tuple(dict.fromkeys(rules.sitemaps))[:MAX_SITEMAPS]
        return cls(min(requested, MAX_CRAWL_DELAY) or None, requested, sitemaps, lines, rules, token, bounded)

    def allows(self, url: str) -> bool:
        """Return whether the robot may fetch this absolute URL."""
        return bool(self._rules.can_fetch(url, self._token))

    def denial(self, url: str) -> str:
        """Return the line that forbids a URL, as `robots.txt, line 3: Disallow: /private/`.

        Of several rules, the longest one decides (RFC 9309 section 2.2.2).
        """
        parts = urlsplit(url)
        path = unquote(f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
        rules = [rule for rule in _disallows(self._bounded) if path.startswith(rule.start)]
        for rule in sorted(rules, key=lambda each: -len(each.value))[:_MAX_COMPARED]:
            if not Protego.parse(f"{OWN_AGENT}\nDisallow: {rule.value}").can_fetch(url, self._token):
                shown = self.lines.splitlines()[rule.number - 1].strip()[:MAX_SHOWN]
                return f"robots.txt, line {rule.number}: {shown}"
        return f"robots.txt disallows {url}"


def _bounded(text: str) -> str:
    """Return the lines of one robot so that they are cheap to match. Distinct lines are counted: files repeat rules."""
    lines = []
    counted: dict[str, str] = {OWN_AGENT: OWN_AGENT}
    left = _MAX_WILDCARDS
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if "*" in line:
            if line not in counted:
                left -= line.count("*")
                counted[line] = line
                if left < 0:
                    # A rule that forbids at least as much, without wildcards; none in place of an Allow.
                    start = line.partition("*")[0].rstrip()
                    counted[line] = "" if _ALLOW_LINE.match(line) else f"{start}/" if start.endswith(":") else start
            line = counted[line]
        lines.append(line)
    return "\n".join(lines)


class _DisallowLine(NamedTuple):
    """A Disallow line: its number from 1, its value, and the start of the decoded path of every URL that it forbids."""

    number: int
    value: str
    start: str


def own_lines(text: str, token: str) -> str:
    """Return a robots.txt with empty lines in place of all that mean nothing to a robot, so each keeps its number.

    Sitemaps stay, and the groups for the robot, or else those for all robots. Their robots become `*`.
    """
    lines = text.splitlines()
    kept: dict[bool, dict[int, str]] = {True: {}, False: {}}  # By whether a group is the robot's own.
    has_own = in_rules = False
    groups: set[bool] = set()
    for number, raw in enumerate(lines):
        line = raw.partition("#")[0].strip()
        if agent := _AGENT.match(line):
            groups = set() if in_rules else groups
            in_rules = False
            is_own = product_token(agent[1]).lower() == token.lower()
            if is_own or agent[1] == "*":
                has_own |= is_own
                groups.add(is_own)
                kept[is_own][number] = OWN_AGENT
        elif _SITEMAP.match(line):
            kept[True][number] = kept[False][number] = line
        elif _RULE.match(line):
            in_rules = True
            for group in groups:
                kept[group][number] = raw
    found = kept[has_own]
    return "\n".join(found.get(number, "") for number in range(max(found, default=-1) + 1))


@lru_cache(maxsize=32)
def _disallows(bounded: str) -> tuple[_DisallowLine, ...]:
    """Return the Disallow lines of a file that has the lines of one robot only."""
    return tuple(
        _DisallowLine(number, rule[1], unquote(re.split(r"\*|\$$", rule[1], maxsplit=1)[0]))
        for number, line in enumerate(bounded.splitlines(), start=1)
        if (rule := _DISALLOW.match(line.partition("#")[0].strip()))
    )
