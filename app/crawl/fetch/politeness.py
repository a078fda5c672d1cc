"""Politeness: robots.txt (RFC 9309), X-Robots-Tag, and the host rate limiter."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ada_url
from protego import Protego
from redis import Redis

from app.broker.errors import Postpone
from app.crawl.fetch.robots_lines import OWN_AGENT, denying_line, own_lines, product_token
from app.crawl.frontier.values import LEASE, Host, host_keys
from app.crawl.record.crawls import CrawlSettings
from app.crawl.urls import allows_port, host_of, resolve
from app.errors import FetchError, ForbiddenAddress, InvalidUrl, RobotsUnavailable
from app.http.response import Response
from app.state.client import PREFIX, load_script
from app.state.lease import lease

log = logging.getLogger(__name__)

#: Bytes of a robots.txt that are read; RFC 9309 section 2.5 requires at least this many.
MAX_BYTES = 500 * 1024
#: Redirects followed to a robots.txt; RFC 9309 section 2.3.1.2 recommends at least five.
MAX_REDIRECTS = 5

#: Sitemaps of a robots.txt that are read.
MAX_SITEMAPS = 500

#: Seconds that Redis keeps a robots.txt; RFC 9309 section 2.4 allows 24 hours.
_TTL = 86_400
#: Bytes of them that Redis keeps for one domain, whatever hosts its pages and sitemaps are on. Then the oldest go.
_DOMAIN_BYTES = 16 * 2**20
#: Seconds that a process uses parsed rules without asking Redis.
_PARSED_TTL = 60.0
#: Files whose parsed rules a process keeps, and their characters together. Parsed they take about twenty times as much.
_PARSED_FILES = 1_000
_PARSED_CHARACTERS = 1_000_000
#: Wildcards of a robots.txt that are matched. Real files have some hundreds.
_MAX_WILDCARDS = 5_000
#: Seconds after which another worker may fetch a robots.txt whose fetcher died.
_FETCH_LEASE = 10.0
#: Milliseconds until an unavailable robots.txt is requested again: every page of the host needs it.
_UNAVAILABLE_MS = 1_000

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ALLOW_LINE = re.compile(r"allow(?=[\s:])", re.I)
#: Directives with a value after a colon; any other colon follows the name of a robot.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_NAMED = re.compile(r"\s*([a-z*][a-z0-9_-]*)\s*:\s*", re.I)


class Getter(Protocol):
    """Gets a URL without following redirects, as Fetcher does."""

    def get(self, url: str, *, max_bytes: int = 0) -> Response:
        """Return the response, its body cut at `max_bytes`; raises FetchError."""


class RobotsCache:
    """The rules of hosts: fetched once a day by one worker, kept in Redis, parsed once a minute in each process.

    A robots.txt is requested within the rate limit of its host: `delay` is in seconds.
    """

    def __init__(
        self,
        redis: Redis,
        fetcher: Getter,
        rate_limiter: HostRateLimiter,
        *,
        user_agent: str,
        max_crawl_delay: float,
        delay: float,
        concurrency: int,
        ports: Collection[int] = (),
    ) -> None:
        self._redis = redis
        self._fetcher = fetcher
        self._rate_limiter = rate_limiter
        self._delay = delay
        self._concurrency = concurrency
        self._user_agent = user_agent
        self._max_crawl_delay = max_crawl_delay
        self._ports = ports
        self._parsed = ParsedFiles()
        self._keep = load_script(redis, Path(__file__).parent / "keep_robots.lua")

    def rules(
        self, url: str, getter: Getter | None = None, limits: CrawlSettings | None = None, *, domain: str = ""
    ) -> RobotsRules:
        """Return the rules for an absolute URL; `getter` and `limits` are those of its site, `domain` of its crawl.

        Raises RobotsUnavailable, and Postpone while another worker fetches the robots.txt or its host is busy.
        """
        robots_txt = robots_url(url)
        if (rules := self._parsed.get(robots_txt)) is not None:
            return rules
        key = f"{PREFIX}robots:{robots_txt.removesuffix('/robots.txt')}"
        text = self._lines_in(self._redis.get(key))
        if text is None:
            text = self._fetch_once(robots_txt, key, getter or self._fetcher, limits, domain or host_of(url))
        rules = self._parse(text)
        self._parsed.put(robots_txt, rules, len(text))
        return rules

    def _parse(self, text: str) -> RobotsRules:
        return RobotsRules.parse(text, user_agent=self._user_agent, crawl_delay_max=self._max_crawl_delay)

    def _lines_in(self, kept: object) -> str | None:
        """Return the lines of a robots.txt that Redis keeps, None if it keeps none for the robot of this name."""
        token, separator, lines = str(kept or "").partition("\n")
        return lines if separator and token == product_token(self._user_agent) else None

    def _fetch_once(self, robots_txt: str, key: str, getter: Getter, limits: CrawlSettings | None, domain: str) -> str:
        """Fetch a robots.txt as the only worker, and share its lines; raises as `rules`."""
        with lease(self._redis, key.removeprefix(PREFIX), seconds=_FETCH_LEASE):
            # The holder before may have fetched it.
            kept, failure = self._redis.mget(key, f"{key}:down")
            if (lines := self._lines_in(kept)) is not None:
                return lines
            if failure is not None:
                raise RobotsUnavailable(str(failure))
            try:
                fetched = self._fetch(robots_txt, getter, limits)
            except RobotsUnavailable as error:
                self._redis.set(f"{key}:down", str(error), px=_UNAVAILABLE_MS)
                raise
            of_domain = f"{PREFIX}robots-of:{domain}"
            self._keep(
                keys=[key, of_domain, f"{of_domain}:bytes"],
                args=[f"{product_token(self._user_agent)}\n{fetched}", _TTL, _DOMAIN_BYTES],
            )
            return fetched

    def _fetch(self, robots_txt: str, getter: Getter, limits: CrawlSettings | None) -> str:
        """Return the lines of a robots.txt that address the robot, requested within the rate limit of its host."""
        delay = limits.host_delay if limits else self._delay
        concurrency = limits.host_concurrency if limits else self._concurrency
        host = Host(host_of(robots_txt), delay, 1 if delay else concurrency)
        wait = self._rate_limiter.reserve(host, requester="robots.txt")
        if wait > 0:
            raise Postpone(wait, f"{host.name} gets one request in {host.delay:g} s, and its robots.txt is due")
        try:
            text = fetch_robots(robots_txt, getter, ports=self._ports)
        finally:
            self._rate_limiter.release(host, requester="robots.txt")
        rules = self._parse(text)
        if rules.crawl_delay and rules.requested_delay > rules.crawl_delay:
            log.warning(
                "%s asks for %g s between requests; CRAWL_DELAY_MAX cuts this to %g s",
                robots_txt, rules.requested_delay, rules.crawl_delay,
            )  # fmt: skip
        return rules.lines


class ParsedFiles:
    """Parsed rules by the URL of their robots.txt: the most recently used ones, each for a minute. Safe for threads."""

    def __init__(self, *, files: int = _PARSED_FILES, characters: int = _PARSED_CHARACTERS) -> None:
        self._files = files
        self._left = characters
        self._entries: OrderedDict[str, tuple[float, int, RobotsRules]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, url: str) -> RobotsRules | None:
        """Return the rules, or None where they are missing or expired."""
        with self._lock:
            expires, _, rules = self._entries.get(url, (0.0, 0, None))
            if rules is None or time.monotonic() > expires:
                return None
            self._entries.move_to_end(url)
            return rules

    def put(self, url: str, rules: RobotsRules, characters: int) -> None:
        """Keep the rules of a file of this length, and forget the least recently used ones beyond the bounds."""
        with self._lock:
            if url in self._entries:
                self._left += self._entries.pop(url)[1]
            self._entries[url] = (time.monotonic() + _PARSED_TTL, characters, rules)
            self._left -= characters
            while len(self._entries) > self._files or (self._left < 0 and len(self._entries) > 1):
                self._left += self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)


def robots_url(url: str) -> str:
    """Return the URL of the robots.txt for an absolute URL; raises InvalidUrl."""
    try:
        return f"{ada_url.URL(url).origin}/robots.txt"
    except ValueError as error:
        raise InvalidUrl(f"URL {url!r}: not an absolute URL") from error


def fetch_robots(url: str, fetcher: Getter, *, ports: Collection[int] = ()) -> str:
    """Return the text of the robots.txt for `url`; empty, which allows everything, where there is no valid one.

    Any 4xx but 429 and more than five redirects count as no robots.txt (RFC 9309 section 2.3.1). So does a redirect to
    an invalid URL, a private address or another port than 80, 443, that of `url`, and `ports`.
    Raises RobotsUnavailable for 5xx, 429 and a failed request, and ForbiddenAddress when the host itself has a private
    address.
    """
    target: str | None = robots_url(url)
    for hop in range(MAX_REDIRECTS + 1):
        if target is None or not allows_port(host_of(url), target, ports):
            return ""
        try:
            response = fetcher.get(target, max_bytes=MAX_BYTES)
        except ForbiddenAddress:
            if hop == 0:
                raise
            return ""
        except FetchError as error:
            raise RobotsUnavailable(f"{target}: {error}") from error
        if response.status == 429 or response.status >= 500:
            raise RobotsUnavailable(f"{response.url}: {response.status}")
        if response.ok:
            # Each invalid byte becomes three: the bytes that are kept are counted.
            body = response.body.decode("utf-8-sig", "replace").encode()
            if response.truncated or len(body) > MAX_BYTES:  # Without its last line: a part of a rule is another rule.
                body = body[: body.rfind(b"\n", 0, MAX_BYTES) + 1]
            return body.decode()
        if response.status not in _REDIRECTS:
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
    def parse(cls, text: str, *, user_agent: str, crawl_delay_max: float = 30.0) -> RobotsRules:
        """Parse a robots.txt for the robot of this User-Agent; `crawl_delay` is at most `crawl_delay_max` seconds.

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
        return cls(min(requested, crawl_delay_max) or None, requested, sitemaps, lines, rules, token, bounded)

    def allows(self, url: str) -> bool:
        """Return whether the robot may fetch this absolute URL."""
        return bool(self._rules.can_fetch(url, self._token))

    def denial(self, url: str) -> str:
        """Return the line that forbids a URL, as `robots.txt, line 3: Disallow: /private/`."""
        line = denying_line(self.lines, self._bounded, url, self._token)
        return f"robots.txt, {line}" if line else f"robots.txt disallows {url}"


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


def robots_directives(values: Iterable[str], token: str) -> frozenset[str]:
    """Return the directives of X-Robots-Tag values, one per header line, that address every robot or this one.

    Directives are lower case and without values: `noindex`, `nofollow`, `none`... A value may begin with the robot it
    addresses, as in `Perennial: noindex, nofollow`.
    """
    found: set[str] = set()
    for value in values:
        addressed = True
        for part in value.split(","):
            named = _NAMED.match(part)
            if named and named[1].lower() not in _VALUED:
                addressed = named[1].lower() in ("*", token.lower())
                part = part[named.end() :]
            if addressed:
                found.add(part.partition(":")[0].strip().lower())
    return frozenset(found - {""})


class HostRateLimiter:
    """Spaces out the requests to each host, over all workers.

    Reservations are kept in Redis, so that a message that has to wait occupies no worker: it is postponed. The pages of
    our own crawls need none: their crawl admits as many as the host takes.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reserve = load_script(redis, Path(__file__).parent / "rate_limiter.lua")

    def reserve(self, host: Host, *, requester: str) -> float:
        """Return the seconds until `requester` may send its request to `host`; 0.0 means now, and counts as sent.

        The first call makes a reservation one delay after the previous one; later calls of the same requester return
        the rest of the wait. A requester that is late may go once the host has been idle for its delay.
        """
        key, in_flight, hold = host_keys(host.name)
        pause = max(0, int(self._redis.pttl(hold))) / 1_000
        if pause:
            return pause
        arguments = [requester, host.delay, host.concurrency, LEASE]
        return float(self._reserve(keys=[key, f"{key}:slots", in_flight], args=arguments))

    def release(self, host: Host, *, requester: str) -> None:
        """Note that a request has ended: the delay until the next one begins."""
        key, in_flight, _ = host_keys(host.name)
        self._redis.zrem(in_flight, requester)
        if host.delay:
            seconds, micros = self._redis.time()
            self._redis.hset(key, "last", f"{seconds}.{micros:06}")

    def pause(self, host: str, seconds: float) -> None:
        """Allow no request to `host` for `seconds`, as its Retry-After demands."""
        if (milliseconds := math.ceil(seconds * 1_000)) > 0:
            self._redis.set(host_keys(host)[2], "1", px=milliseconds)
